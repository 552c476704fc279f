#include "model/model_files.h"

#include <cmath>

#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/model/checkpoints.h"
#include "tests/reference/compare.h"
#include "tests/reference/message_of.h"

using namespace maxim;
using namespace maxim_tests;
using Json = nlohmann::ordered_json;

namespace {

// All weights of a directory, in the order of Parameters.
std::vector<float> weights_of(const std::string& directory, uint64_t seed = 1) {
  HostDevice device;
  const ModelFiles files(directory);
  Parameters parameters(device, files.bert(), files.colbert().embedding_size, false);
  files.load(parameters, device, seed);
  std::vector<float> values(parameters.values().size());
  device.copy_out(values.data(), parameters.values());
  return values;
}

const std::vector<float>& tiny_weights() {
  static const std::vector<float> weights = weights_of("tests/golden/tiny_bert");
  return weights;
}

void require_tiny_weights(const std::string& what, const Checkpoint& checkpoint) {
  require_same_bits(what, weights_of(checkpoint.path()), tiny_weights());
}

void for_each_name(Checkpoint& checkpoint, const std::function<void(std::string&)>& edit) {
  checkpoint.edit_tensors([&](std::vector<RawTensor>& tensors) {
    for (RawTensor& t : tensors) edit(t.name);
  });
}

void replace_end(std::string& name, const std::string& end, const std::string& other) {
  if (name.ends_with(end)) name.replace(name.size() - end.size(), end.size(), other);
}

// Makes a broken copy of tiny_bert and demands an InputError with these words.
void require_refused(const std::function<void(Checkpoint&)>& damage,
                     const std::vector<std::string>& words) {
  Checkpoint checkpoint;
  damage(checkpoint);
  require_message<InputError>([&] { ModelFiles{checkpoint.path()}; }, words);
}

std::function<void(Checkpoint&)> config(const std::string& name, const std::string& key,
                                        const Json& value) {
  return [=](Checkpoint& c) { c.edit_json(name, [&](Json& json) { json[key] = value; }); };
}

}  // namespace

TEST_CASE("the weights are those of the file", "[model_files]") {
  HostDevice device;
  const ModelFiles files("tests/golden/tiny_bert");
  Parameters parameters(device, files.bert(), 64, false);
  files.load(parameters, device, 1);
  for (const Parameter& p : parameters.list()) {
    std::string name = p.name;
    const bool projection = name == "1_Dense.linear.weight";
    replace_end(name, "LayerNorm.weight", "LayerNorm.gamma");
    replace_end(name, "LayerNorm.bias", "LayerNorm.beta");
    const SafetensorsFile file(projection ? "tests/golden/tiny_bert/1_Dense/model.safetensors"
                                          : "tests/golden/tiny_bert/model.safetensors");
    std::vector<float> want(p.size()), got(p.size());
    read_as_float(file, projection ? "linear.weight" : name, want.data());
    device.copy_out(got.data(), parameters.value(p.name));
    require_same_bits(p.name, got, want);
  }
}

TEST_CASE("other names and places, equal weights", "[model_files]") {
  {
    Checkpoint c;
    for_each_name(c, [](std::string& name) { name = "bert." + name; });
    require_tiny_weights("prefix bert.", c);
  }
  {
    Checkpoint c;
    for_each_name(c, [](std::string& name) {
      replace_end(name, "LayerNorm.gamma", "LayerNorm.weight");
      replace_end(name, "LayerNorm.beta", "LayerNorm.bias");
    });
    require_tiny_weights("LayerNorm.weight and bias", c);
  }
  {
    Checkpoint c;  // as BertForPreTraining, with the index buffer of old transformers
    c.edit_tensors([](std::vector<RawTensor>& tensors) {
      std::erase_if(tensors, [](const RawTensor& t) { return t.name.starts_with("pooler."); });
      for (RawTensor& t : tensors) t.name = "bert." + t.name;
      tensors.push_back({"bert.embeddings.position_ids", "I64", {1, 2}, std::string(16, '\0')});
      tensors.push_back({"cls.predictions.bias", "F32", {2}, std::string(8, '\0')});
    });
    require_tiny_weights("without pooler, with a head", c);
    CHECK(ModelFiles(c.path()).warnings().empty());
  }
  {
    Checkpoint c;
    c.to_shards();
    require_tiny_weights("shards", c);
  }
  {
    Checkpoint c;  // the layout of older sentence-transformers
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json",
                             "tokenizer_config.json", "sentence_bert_config.json"})
      c.rename(name, std::string("0_Transformer/") + name);
    c.edit_json("modules.json", [](Json& modules) { modules[0]["path"] = "0_Transformer"; });
    require_tiny_weights("0_Transformer", c);
    CHECK(ModelFiles(c.path()).tokenizer_directory() == c.file("0_Transformer"));
  }
  {
    Checkpoint c;
    c.to_multi_vector();
    require_tiny_weights("multi-vector", c);
  }
  {
    Checkpoint c;
    c.to_stanford();
    require_tiny_weights("Stanford", c);
  }
}

TEST_CASE("16-bit weights become the floats they stand for", "[model_files]") {
  for (const std::string dtype : {"F16", "BF16"}) {
    Checkpoint narrow, wide;
    narrow.edit_tensors([&](std::vector<RawTensor>& tensors) {
      for (RawTensor& t : tensors) t = narrowed(t, dtype);
    });
    wide.edit_tensors([&](std::vector<RawTensor>& tensors) {
      for (RawTensor& t : tensors) t = widened(narrowed(t, dtype));
    });
    const std::vector<float> weights = weights_of(narrow.path());
    require_same_bits(dtype, weights, weights_of(wide.path()));
    CHECK(weights != tiny_weights());
  }
}

TEST_CASE("each layout is recognised, with its settings", "[model_files]") {
  {
    const ModelFiles files("tests/golden/tiny_bert");
    CHECK(files.format() == "PyLate");
    CHECK(files.has_projection());
    CHECK(files.warnings().empty());
    CHECK(files.bert().vocab_size == 1396);
    CHECK(files.bert().hidden_dropout_prob == 0);
    const ColbertConfig& colbert = files.colbert();
    CHECK(colbert.query_prefix == "[Q] ");
    CHECK(colbert.document_prefix == "[D] ");
    CHECK(colbert.query_length == 16);
    CHECK(colbert.document_length == 48);
    CHECK(colbert.do_query_expansion);
    CHECK_FALSE(colbert.attend_to_expansion_tokens);
    CHECK(colbert.skiplist_words.size() == 32);
    CHECK(colbert.embedding_size == 64);
  }
  {
    Checkpoint c;
    c.to_hugging_face();
    const ModelFiles files(c.path());
    CHECK(files.format() == "Hugging Face BERT");
    CHECK_FALSE(files.has_projection());
    CHECK(files.colbert().query_length == 32);
    CHECK(files.colbert().document_length == 180);
    CHECK(files.colbert().embedding_size == 128);
    CHECK(files.colbert().skiplist_words.size() == 32);
  }
  {
    Checkpoint c;
    c.to_stanford();
    const ModelFiles files(c.path());
    CHECK(files.format() == "Stanford ColBERT");
    CHECK(files.has_projection());
    CHECK(files.colbert().query_prefix == "[unused2]");
    CHECK(files.colbert().document_prefix == "[unused3]");
    CHECK(files.colbert().query_length == 20);
    CHECK(files.colbert().document_length == 60);
    CHECK(files.colbert().attend_to_expansion_tokens);
    CHECK(files.colbert().embedding_size == 64);
    c.remove("artifact.metadata");
    CHECK(ModelFiles(c.path()).colbert().query_prefix == "[unused0]");
    CHECK(ModelFiles(c.path()).colbert().document_prefix == "[unused1]");
    CHECK(ModelFiles(c.path()).colbert().query_length == 32);
  }
  {
    Checkpoint c;
    c.to_multi_vector();
    {
      const ModelFiles files(c.path());
      CHECK(files.format() == "sentence-transformers 6 multi-vector");
      CHECK(files.colbert().query_prefix == "[Q] ");
      CHECK(files.colbert().document_prefix == "[D] ");
      CHECK(files.colbert().query_length == 16);
      CHECK(files.colbert().document_length == 48);
      CHECK(files.colbert().do_query_expansion);
      CHECK(files.colbert().skiplist_words.size() == 32);
    }
    c.edit_json("config_sentence_transformers.json",
                [](Json& json) { json["prompts"]["query"] = ""; });
    c.edit_json("sentence_bert_config.json", [](Json& json) {
      json.erase("document_length");
      json["query_expansion"] = nullptr;
    });
    c.edit_json("2_MultiVectorMask/config.json", [](Json& json) { json["skiplist_words"] = {}; });
    const ModelFiles files(c.path());
    CHECK(files.colbert().query_prefix == "");
    CHECK(files.colbert().document_length == 256);  // model_max_length and positions
    CHECK(files.colbert().query_length == 256);
    CHECK_FALSE(files.colbert().do_query_expansion);
    CHECK(files.colbert().skiplist_words.empty());
  }
  {
    Checkpoint c;  // a single-vector model: its pooling is left out
    c.remove("1_Dense");
    c.remove("config_sentence_transformers.json");
    c.edit_json("modules.json", [](Json& modules) {
      modules[1]["type"] = "sentence_transformers.models.Pooling";
      modules.push_back({{"idx", 2},
                         {"name", "2"},
                         {"path", "2_Normalize"},
                         {"type", "sentence_transformers.models.Normalize"}});
    });
    const ModelFiles files(c.path());
    CHECK(files.format() == "sentence-transformers");
    CHECK_FALSE(files.has_projection());
    CHECK(files.colbert().query_prefix == "[Q] ");
  }
}

TEST_CASE("a vocab_size that the embedding contradicts is a warning", "[model_files]") {
  Checkpoint c;
  c.edit_json("config.json", [](Json& json) { json["vocab_size"] = 1394; });
  const ModelFiles files(c.path());
  CHECK(files.bert().vocab_size == 1396);
  REQUIRE(files.warnings().size() == 1);
  CHECK(files.warnings()[0].find("vocab_size 1394") != std::string::npos);
  CHECK(files.warnings()[0].find("1396 rows") != std::string::npos);
  require_tiny_weights("rows by the tensor", c);
}

TEST_CASE("new word rows lie around the mean; a new projection is uniform", "[model_files]") {
  Checkpoint c;
  c.to_hugging_face();
  HostDevice device;
  const ModelFiles files(c.path());
  BertConfig bert = files.bert();
  bert.vocab_size += 3;
  const auto load = [&](uint64_t seed) {
    Parameters parameters(device, bert, 96, false);
    files.load(parameters, device, seed);
    std::vector<float> values(parameters.values().size());
    device.copy_out(values.data(), parameters.values());
    return values;
  };
  const std::vector<float> values = load(5);
  CHECK(values == load(5));
  CHECK(values != load(6));
  CHECK(values != load(5 + (uint64_t{1} << 32)));  // all 64 bits of the seed count

  // The old rows are the file's, the new ones at the mean of each column, but 1e-9 of the variance.
  const int64_t rows = 1396, hidden = 128;
  CHECK(std::equal(values.begin(), values.begin() + rows * hidden, tiny_weights().begin()));
  double squares = 0;
  for (int64_t j = 0; j < hidden; ++j) {
    double mean = 0, square = 0;
    for (int64_t r = 0; r < rows; ++r) mean += values[r * hidden + j] / double(rows);
    for (int64_t r = 0; r < rows; ++r)
      square += std::pow(values[r * hidden + j] - mean, 2) / double(rows);
    for (int64_t r = rows; r < rows + 3; ++r)
      squares += std::pow(values[r * hidden + j] - mean, 2) / (1e-9 * square) / (3 * hidden);
  }
  // 384 standard normal squares: their mean is 1 +- 0.072; float rounding of the rows is 1e-9 of
  // their size, a thousandth of the deviation.
  CHECK(std::abs(squares - 1) < 0.29);

  const std::vector<Parameter> layout = parameter_layout(bert, 96);
  const float* projection = values.data() + layout.back().offset;
  const double bound = 1 / std::sqrt(128.0);
  double sum = 0, square = 0, largest = 0;
  for (int64_t i = 0; i < 96 * hidden; ++i) {
    sum += projection[i];
    square += projection[i] * projection[i];
    largest = std::max<double>(largest, std::abs(projection[i]));
  }
  const double count = 96 * hidden;
  CHECK(largest <= bound);
  CHECK(largest > 0.99 * bound);
  CHECK(std::abs(sum / count) < 4 * bound / std::sqrt(3 * count));
  CHECK(std::abs(square / count / (bound * bound / 3) - 1) < 4 * std::sqrt(0.8 / count));
}

TEST_CASE("a projection is not resized", "[model_files]") {
  HostDevice device;
  const ModelFiles files("tests/golden/tiny_bert");
  Parameters parameters(device, files.bert(), 96, false);
  require_message<InputError>([&] { files.load(parameters, device, 1); }, {"64", "96"});
}

TEST_CASE("files that are missing or of the wrong kind", "[model_files]") {
  require_message<InputError>([] { ModelFiles{"no/such/model"}; }, {"no/such/model", "no such"});
  require_message<InputError>([] { ModelFiles{"Makefile"}; }, {"Makefile", "not a directory"});
  require_message<InputError>([] { ModelFiles{std::string(300, 'x')}; }, {"xxx", "too long"});
  require_refused([](Checkpoint& c) { c.remove("config.json"); }, {"config.json", "No such file"});
  require_refused(
      [](Checkpoint& c) {
        c.to_hugging_face();
        c.remove("config.json");
      },
      {"no config.json"});
  require_refused([](Checkpoint& c) { c.remove("model.safetensors"); }, {"no model.safetensors"});
  require_refused([](Checkpoint& c) { c.rename("model.safetensors", "pytorch_model.bin"); },
                  {"pytorch_model.bin", "Convert", "torch.load", "save_file", "model.safetensors"});
  require_refused(
      [](Checkpoint& c) { c.rename("1_Dense/model.safetensors", "1_Dense/pytorch_model.bin"); },
      {"1_Dense", "pytorch_model.bin", "Convert"});
  require_refused(
      [](Checkpoint& c) {
        write_text(c.file("model.safetensors"), "version https://git-lfs.github.com/spec/v1\n");
      },
      {"model.safetensors", "Git LFS pointer"});
  require_refused([](Checkpoint& c) { c.remove("1_Dense/config.json"); }, {"1_Dense/config.json"});
  require_refused(
      [](Checkpoint& c) {
        c.to_shards();
        c.remove("model-00002-of-00002.safetensors");
      },
      {"model-00002-of-00002.safetensors", "No such file"});
  require_refused(
      [](Checkpoint& c) {
        c.to_shards();
        c.edit_json("model.safetensors.index.json", [](Json& json) { json = {{"a", 1}}; });
      },
      {"model.safetensors.index.json", "weight_map"});
}

TEST_CASE("weights that do not fit the configuration", "[model_files]") {
  const std::string query = "encoder.layer.1.attention.self.query.weight";
  require_refused(
      [&](Checkpoint& c) {
        for_each_name(c, [&](std::string& name) {
          if (name == query) name = "encoder.layer.1.attention.self.q.weight";
        });
      },
      {"1 tensors are missing: " + query, "1 are unexpected: encoder.layer.1.attention.self.q"});
  require_refused(
      [](Checkpoint& c) { for_each_name(c, [](std::string& name) { name = "model." + name; }); },
      {"37 tensors are missing: embeddings.word_embeddings.weight", ", …",
       "unexpected: model.embeddings"});
  require_refused(config("config.json", "num_hidden_layers", 3),
                  {"16 tensors are missing: encoder.layer.2.", ", …", "0 are unexpected"});
  require_refused(config("config.json", "num_hidden_layers", 1),
                  {"encoder.layer.1.", "num_hidden_layers 1"});
  require_refused(config("config.json", "intermediate_size", 256),
                  {"intermediate.dense.weight is [512, 128], expected [256, 128]", "config.json"});
  require_refused(
      [](Checkpoint& c) {
        c.edit_tensors([](std::vector<RawTensor>& tensors) {
          tensors.push_back({"embeddings.projection.weight", "F32", {1}, std::string(4, '\0')});
        });
      },
      {"embeddings.projection.weight", "unknown"});
  require_refused(
      [](Checkpoint& c) {
        c.edit_tensors([](std::vector<RawTensor>& tensors) {
          for (RawTensor& t : tensors)
            if (t.name == "encoder.layer.0.output.dense.bias") t.dtype = "I32";
        });
      },
      {"encoder.layer.0.output.dense.bias is I32", "F32, F16 or BF16"});
  require_refused(
      [](Checkpoint& c) {
        c.edit_tensors([](std::vector<RawTensor>& tensors) {
          RawTensor again = tensors.front();
          again.name = "bert." + again.name;
          tensors.push_back(again);
        });
      },
      {"is there twice"});
}

TEST_CASE("modules and projections that are not built", "[model_files]") {
  const std::string dense = "1_Dense/config.json";
  require_refused(config(dense, "bias", true), {dense, "bias is true"});
  require_refused(config(dense, "use_residual", true), {dense, "use_residual is true"});
  require_refused(config(dense, "activation_function", "torch.nn.modules.activation.Tanh"),
                  {dense, "Tanh", "Identity"});
  require_refused(
      [&](Checkpoint& c) {
        c.edit_json(dense, [](Json& json) { json.erase("activation_function"); });
      },
      {dense, "activation_function is missing"});
  require_refused(
      [](Checkpoint& c) {
        const std::string path = c.file("1_Dense/model.safetensors");
        std::vector<RawTensor> tensors = read_tensors(path);
        tensors.push_back({"linear.bias", "F32", {64}, std::string(256, '\0')});
        write_tensors(path, tensors);
      },
      {"1_Dense/model.safetensors", "linear.bias is unexpected"});
  require_refused(
      [](Checkpoint& c) {
        const std::string path = c.file("1_Dense/model.safetensors");
        std::vector<RawTensor> tensors = read_tensors(path);
        tensors[0].shape = {128, 64};
        write_tensors(path, tensors);
      },
      {"linear.weight is [128, 64], expected [embedding size, 128]"});
  const auto module = [](const std::string& path, const std::string& type) {
    return [=](Checkpoint& c) {
      c.edit_json("modules.json", [&](Json& json) {
        json.push_back({{"idx", 2}, {"name", "2"}, {"path", path}, {"type", type}});
      });
    };
  };
  require_refused(module("2_Dense", "pylate.models.Dense.Dense"),
                  {"modules.json", "two Dense modules", "1_Dense", "2_Dense"});
  require_refused(module("2_LSTM", "sentence_transformers.models.LSTM"),
                  {"modules.json", "sentence_transformers.models.LSTM is not built"});
  require_refused(
      [](Checkpoint& c) { c.edit_json("modules.json", [](Json& json) { json.erase(0); }); },
      {"modules.json", "no Transformer module"});
  require_refused([](Checkpoint& c) { write_text(c.file("modules.json"), "{}"); },
                  {"modules.json", "list of modules"});
  require_refused([](Checkpoint& c) { write_text(c.file("modules.json"), R"([{"type": 3}])"); },
                  {"modules.json", "module 0 has no type"});
  require_refused(
      [](Checkpoint& c) {
        c.to_stanford();
        c.edit_tensors([](std::vector<RawTensor>& tensors) { tensors.pop_back(); });
      },
      {"no linear.weight", "Stanford"});
}

TEST_CASE("settings of the wrong kind", "[model_files]") {
  const std::string file = "config_sentence_transformers.json";
  require_refused(config(file, "query_length", 0), {file, "query_length is 0"});
  require_refused(config(file, "document_length", "48"), {file, "document_length is \"48\""});
  require_refused(config(file, "query_prefix", 5), {file, "query_prefix is 5", "a string"});
  require_refused(config(file, "do_query_expansion", "yes"), {file, "true or false"});
  require_refused(config(file, "skiplist_words", {1, 2}), {file, "a list of strings"});
  const auto multi_vector = [](const std::string& name, const std::string& key, const Json& value) {
    return [=](Checkpoint& c) {
      c.to_multi_vector();
      c.edit_json(name, [&](Json& json) { json[key] = value; });
    };
  };
  require_refused(multi_vector(file, "prompts", {{"query", "search_query: "}}),
                  {file, "search_query: ", "one token"});
  const std::string transformer = "sentence_bert_config.json";
  require_refused(
      multi_vector(transformer, "query_expansion", {{"strategy", "min"}, {"length", 8}}),
      {transformer, "query_expansion", "fixed"});
  require_refused(multi_vector(transformer, "query_expansion",
                               {{"strategy", "fixed"}, {"length", 8}, {"token", "[PAD]"}}),
                  {transformer, "[PAD]", "[MASK]"});
  require_refused(multi_vector(transformer, "query_expansion", {{"strategy", "fixed"}}),
                  {transformer, "a length"});
  const std::string mask = "2_MultiVectorMask/config.json";
  require_refused(multi_vector(mask, "skiplist_tasks", {"query", "document"}),
                  {mask, "skiplist_tasks"});
  require_refused(multi_vector(mask, "keep_only_token_ids", {5}), {mask, "keep_only_token_ids"});
}

TEST_CASE("a weight that is not finite is refused by name", "[model_files]") {
  for (const char* type : {"F32", "F16", "BF16"}) {
    Checkpoint checkpoint;
    checkpoint.edit_tensors([&](std::vector<RawTensor>& tensors) {
      RawTensor& tensor = tensors[3];
      if (std::string(type) != "F32") tensor = narrowed(tensor, type);
      tensor.bytes.replace(tensor.bytes.size() - 2, 2, "\xFF\x7F");  // NaN in all three types
    });
    const ModelFiles files(checkpoint.path());
    HostDevice device;
    Parameters parameters(device, files.bert(), files.colbert().embedding_size, false);
    require_message<InputError>([&] { files.load(parameters, device, 1); },
                                {"model.safetensors", "NaN", ".weight"});
  }
}

#include <cmath>
#include <set>

#include "model/model_files.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tests/catch.h"
#include "tests/model/checkpoints.h"
#include "tests/reference/compare.h"
#include "tests/reference/message_of.h"

using namespace maxim;
using namespace maxim_tests;
using Json = nlohmann::ordered_json;

namespace {

const std::string kTiny = "tests/golden/tiny_bert";

// Loads a directory and saves it again under `target`.
void save_copy(const std::string& source, const std::string& target,
               const std::function<void(ColbertConfig&)>& edit = {}) {
  HostDevice device;
  const ModelFiles files(source);
  Parameters parameters(device, files.bert(), files.colbert().embedding_size, false);
  files.load(parameters, device, 1);
  ColbertConfig colbert = files.colbert();
  if (edit) edit(colbert);
  make_directories(target);
  save_model(target, files.bert(), colbert, parameters, device);
}

std::vector<float> weights_of(const std::string& directory) {
  HostDevice device;
  const ModelFiles files(directory);
  Parameters parameters(device, files.bert(), files.colbert().embedding_size, false);
  files.load(parameters, device, 1);
  std::vector<float> values(parameters.values().size());
  device.copy_out(values.data(), parameters.values());
  return values;
}

}  // namespace

TEST_CASE("a saved model has PyLate's files and keys", "[save_model]") {
  const TemporaryDirectory directory;
  const std::string saved = directory.file("saved");
  save_copy(kTiny, saved);
  // What PyLate wrote, key by key.
  for (const char* name : {"modules.json", "1_Dense/config.json", "config.json"}) {
    INFO(name);
    CHECK(read_json(saved + "/" + name) == read_json(kTiny + "/" + name));
  }
  Json ours = read_json(saved + "/config_sentence_transformers.json");
  Json theirs = read_json(kTiny + "/config_sentence_transformers.json");
  for (const char* key : {"sentence_transformers", "transformers", "pytorch"})
    CHECK(ours.at("__version__").at(key).is_string());
  ours.erase("__version__");
  theirs.erase("__version__");
  CHECK(ours == theirs);
  const Json transformer = read_json(saved + "/sentence_bert_config.json");
  CHECK(transformer.at("max_seq_length").is_number());
  CHECK(transformer.at("do_lower_case") == false);
  CHECK(read_text(saved + "/README.md").starts_with("---\n"));

  // Hugging Face's names, all F32, no pooler.
  const SafetensorsFile weights(saved + "/model.safetensors");
  CHECK(weights.metadata().at("format") == "pt");
  std::set<std::string> names;
  for (const auto& [name, entry] : weights.entries()) {
    names.insert(name);
    CHECK(entry.dtype == "F32");
  }
  std::set<std::string> expected;
  for (RawTensor t : read_tensors(kTiny + "/model.safetensors")) {
    if (t.name.starts_with("pooler.")) continue;
    for (const auto& [from, to] : {std::pair{"gamma", "weight"}, {"beta", "bias"}})
      if (t.name.ends_with(from)) t.name.replace(t.name.rfind(from), std::string::npos, to);
    expected.insert(t.name);
  }
  CHECK(names == expected);
  CHECK(weights.at("embeddings.word_embeddings.weight").shape == std::vector<int64_t>{1396, 128});
  const SafetensorsFile dense(saved + "/1_Dense/model.safetensors");
  CHECK(dense.entries().size() == 1);
  CHECK(dense.at("linear.weight").shape == std::vector<int64_t>{64, 128});
}

TEST_CASE("a saved model loads to the same bits and settings", "[save_model]") {
  const TemporaryDirectory directory;
  save_copy(kTiny, directory.file("one"), [](ColbertConfig& colbert) {
    colbert.query_prefix = "";
    colbert.document_prefix = "[Wörld] ";
    colbert.query_length = 20;
    colbert.document_length = 200;
    colbert.do_query_expansion = false;
    colbert.attend_to_expansion_tokens = true;
    colbert.skiplist_words = {"the", "\""};
  });
  require_same_bits("weights", weights_of(directory.file("one")), weights_of(kTiny));
  const ModelFiles files(directory.file("one"));
  CHECK(files.format() == "PyLate");
  CHECK(files.warnings().empty());
  CHECK(files.colbert().query_prefix == "");
  CHECK(files.colbert().document_prefix == "[Wörld] ");
  CHECK(files.colbert().query_length == 20);
  CHECK(files.colbert().document_length == 200);
  CHECK_FALSE(files.colbert().do_query_expansion);
  CHECK(files.colbert().attend_to_expansion_tokens);
  CHECK(files.colbert().skiplist_words == std::vector<std::string>{"the", "\""});
  CHECK(files.colbert().embedding_size == 64);

  save_copy(directory.file("one"), directory.file("two"));  // saving again: the same bytes
  for (const char* name : {"model.safetensors", "1_Dense/model.safetensors", "config.json",
                           "config_sentence_transformers.json", "README.md"})
    CHECK(read_text(directory.file("one/") + name) == read_text(directory.file("two/") + name));
}

TEST_CASE("a saved configuration says what the weights are", "[save_model]") {
  Checkpoint stanford;
  stanford.to_stanford();
  stanford.edit_json("config.json", [](Json& config) {
    config["torch_dtype"] = "float16";
    config["vocab_size"] = 7;
    config["custom_key"] = {1, 2};
  });
  const TemporaryDirectory directory;
  save_copy(stanford.path(), directory.file("saved"));
  const Json config = read_json(directory.file("saved/config.json"));
  CHECK(config.at("architectures") == Json({"BertModel"}));
  CHECK(config.at("vocab_size") == 1396);
  CHECK(config.at("dtype") == "float32");
  CHECK_FALSE(config.contains("torch_dtype"));
  CHECK(config.at("custom_key") == Json({1, 2}));
  CHECK(ModelFiles(directory.file("saved")).colbert().query_prefix == "[unused2]");
}

TEST_CASE("weights that are not finite are not saved", "[save_model]") {
  const TemporaryDirectory directory;
  const ModelFiles files("tests/golden/tiny_bert");
  HostDevice device;
  Parameters parameters(device, files.bert(), files.colbert().embedding_size, false);
  files.load(parameters, device, 1);
  parameters.value("1_Dense.linear.weight").as<float>()[7] = std::nanf("");
  require_message<Error>(
      [&] { save_model(directory.path(), files.bert(), files.colbert(), parameters, device); },
      {"1_Dense.linear.weight", "NaN"});
}

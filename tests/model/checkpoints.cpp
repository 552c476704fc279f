#include "tests/model/checkpoints.h"

#include <cstring>
#include <filesystem>

#include "runtime/files.h"
#include "runtime/safetensors.h"

namespace maxim_tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

template <class From, class To, class Convert>
std::string converted(const std::string& bytes, Convert convert) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += sizeof(From)) {
    From from;
    std::memcpy(&from, bytes.data() + i, sizeof from);
    const To to = convert(from);
    out.append(reinterpret_cast<const char*>(&to), sizeof to);
  }
  return out;
}

}  // namespace

std::vector<RawTensor> read_tensors(const std::string& path) {
  const maxim::SafetensorsFile file(path);
  std::vector<RawTensor> tensors;
  for (const auto& [name, entry] : file.entries())
    tensors.push_back({name, entry.dtype, entry.shape,
                       std::string(reinterpret_cast<const char*>(entry.data), entry.bytes)});
  return tensors;
}

void write_tensors(const std::string& path, const std::vector<RawTensor>& tensors) {
  std::vector<maxim::SafetensorsWriter::Item> items;
  for (const RawTensor& t : tensors) items.push_back({t.name, t.dtype, t.shape});
  maxim::SafetensorsWriter writer(path, items);
  for (const RawTensor& t : tensors)
    writer.write(t.bytes.data(), static_cast<int64_t>(t.bytes.size()));
  writer.finish();
}

RawTensor narrowed(const RawTensor& tensor, const std::string& dtype) {
  if (dtype == "F16")
    return {tensor.name, dtype, tensor.shape, converted<float, _Float16>(tensor.bytes, [](float x) {
              return static_cast<_Float16>(x);
            })};
  return {tensor.name, dtype, tensor.shape,
          converted<uint32_t, uint16_t>(tensor.bytes, [](uint32_t bits) { return bits >> 16; })};
}

RawTensor widened(const RawTensor& tensor) {
  if (tensor.dtype == "F16")
    return {
        tensor.name, "F32", tensor.shape,
        converted<_Float16, float>(tensor.bytes, [](_Float16 x) { return static_cast<float>(x); })};
  return {
      tensor.name, "F32", tensor.shape,
      converted<uint16_t, uint32_t>(tensor.bytes, [](uint16_t b) { return uint32_t{b} << 16; })};
}

Checkpoint::Checkpoint() : path_(temporary_.file("model")) {
  fs::copy("tests/golden/tiny_bert", path_, fs::copy_options::recursive);
}

void Checkpoint::edit_json(const std::string& name, const std::function<void(Json&)>& edit) {
  Json json = maxim::file_exists(file(name)) ? maxim::read_json(file(name)) : Json::object();
  edit(json);
  maxim::write_json(file(name), json);
}

void Checkpoint::edit_tensors(const std::function<void(std::vector<RawTensor>&)>& edit) {
  std::vector<RawTensor> tensors = read_tensors(file("model.safetensors"));
  edit(tensors);
  write_tensors(file("model.safetensors"), tensors);
}

void Checkpoint::remove(const std::string& name) { fs::remove_all(file(name)); }

void Checkpoint::rename(const std::string& from, const std::string& to) {
  fs::create_directories(fs::path(file(to)).parent_path());
  fs::rename(file(from), file(to));
}

void Checkpoint::to_hugging_face() {
  for (const char* name : {"modules.json", "1_Dense", "config_sentence_transformers.json",
                           "sentence_bert_config.json"})
    remove(name);
}

void Checkpoint::to_stanford() {
  const RawTensor projection = read_tensors(file("1_Dense/model.safetensors")).front();
  to_hugging_face();
  edit_tensors([&](std::vector<RawTensor>& tensors) {
    for (RawTensor& t : tensors) t.name = "bert." + t.name;
    tensors.push_back(projection);
  });
  edit_json("config.json", [](Json& config) { config["architectures"] = {"HF_ColBERT"}; });
  maxim::write_text(file("artifact.metadata"),
                    R"({"query_token_id": "[unused2]", "doc_token_id": "[unused3]",)"
                    R"("query_maxlen": 20, "doc_maxlen": 60, "attend_to_mask_tokens": true,)"
                    R"("dim": 64, "mask_punctuation": true, "similarity": "cosine"})");
}

void Checkpoint::to_multi_vector() {
  const Json skiplist =
      maxim::read_json(file("config_sentence_transformers.json")).at("skiplist_words");
  edit_json("modules.json", [](Json& modules) {
    const std::string base = "sentence_transformers.base.modules.";
    modules[0]["type"] = base + "transformer.Transformer";
    modules[1]["type"] = base + "dense.Dense";
    modules.push_back({{"idx", 2},
                       {"name", "2"},
                       {"path", "2_MultiVectorMask"},
                       {"type",
                        "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask."
                        "MultiVectorMask"}});
    modules.push_back({{"idx", 3},
                       {"name", "3"},
                       {"path", "3_Normalize"},
                       {"type", base + "normalize.Normalize"}});
  });
  fs::create_directories(file("2_MultiVectorMask"));
  edit_json("2_MultiVectorMask/config.json", [&](Json& mask) {
    mask = {{"skiplist_words", skiplist},
            {"skiplist_tasks", {"document"}},
            {"keep_only_token_ids", nullptr}};
  });
  edit_json("config_sentence_transformers.json", [](Json& config) {
    config = {{"model_type", "MultiVectorEncoder"},
              {"prompts", {{"document", "[D] "}, {"query", "[Q] "}}},
              {"similarity_fn_name", nullptr}};
  });
  edit_json("sentence_bert_config.json", [](Json& config) {
    config = {{"transformer_task", "feature-extraction"},
              {"document_length", 48},
              {"query_expansion",
               {{"strategy", "fixed"}, {"attend", false}, {"token", nullptr}, {"length", 16}}}};
  });
}

void Checkpoint::to_shards() {
  const std::vector<RawTensor> all = read_tensors(file("model.safetensors"));
  const auto middle = all.begin() + static_cast<int64_t>(all.size() / 2);
  write_tensors(file("model-00001-of-00002.safetensors"), {all.begin(), middle});
  write_tensors(file("model-00002-of-00002.safetensors"), {middle, all.end()});
  remove("model.safetensors");
  edit_json("model.safetensors.index.json", [&](Json& index) {
    for (auto t = all.begin(); t != all.end(); ++t)
      index["weight_map"][t->name] =
          t < middle ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  });
}

}  // namespace maxim_tests

#include "model/checkpoint_format.h"

#include <filesystem>

#include "runtime/error.h"
#include "runtime/files.h"

namespace maxim {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> punctuation() {  // Python's string.punctuation
  std::vector<std::string> words;
  for (const char c : std::string("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")) words.emplace_back(1, c);
  return words;
}

// Reads a key into `value` where it is given and not null.
template <class T>
void read(const std::string& file, const Json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  bool right = false;
  if constexpr (std::is_same_v<T, bool>)
    right = found->is_boolean();
  else if constexpr (std::is_same_v<T, int64_t>)
    right = found->is_number_integer() && *found >= 1 && *found <= 1 << 20;
  else if constexpr (std::is_same_v<T, std::string>)
    right = found->is_string();
  else
    right = found->is_array() && std::all_of(found->begin(), found->end(),
                                             [](const Json& word) { return word.is_string(); });
  if (!right) fail_input("{}: {} is {}", file, key, found->dump());
  value = found->get<T>();
}

Json read_object(const std::string& file) {
  Json json = read_json(file);
  if (!json.is_object()) fail_input("{}: expected a JSON object", file);
  return json;
}

bool ends_with(const std::string& type, const char* name) {
  return type == name || type.ends_with(std::string(".") + name);
}

struct Modules {
  std::string transformer, dense, mask;
  bool pooling = false;
};

Modules read_modules(const std::string& directory) {
  const std::string file = directory + "/modules.json";
  const Json json = read_json(file);
  if (!json.is_array()) fail_input("{}: expected a list of modules", file);
  Modules modules;
  bool has_transformer = false;
  for (const Json& module : json) {
    if (!module.is_object()) fail_input("{}: expected a list of modules", file);
    std::string type, path;
    read(file, module, "type", type);
    read(file, module, "path", path);
    const std::string place = path.empty() ? directory : directory + "/" + path;
    if (ends_with(type, "Transformer")) {
      if (has_transformer) fail_input("{}: two Transformer modules", file);
      has_transformer = true;
      modules.transformer = place;
    } else if (ends_with(type, "Dense")) {
      if (!modules.dense.empty())
        fail_input("{}: two Dense modules ({} and {}); Maxim builds one projection", file,
                   modules.dense, place);
      modules.dense = place;
    } else if (ends_with(type, "MultiVectorMask")) {
      modules.mask = place;
    } else if (ends_with(type, "Pooling")) {
      modules.pooling = true;
    } else if (!ends_with(type, "Normalize")) {
      fail_input("{}: module {} is not built; Maxim knows Transformer, Dense and Normalize", file,
                 type);
    }
  }
  if (!has_transformer) fail_input("{}: no Transformer module", file);
  return modules;
}

// PyLate's config_sentence_transformers.json; keys that are absent keep their defaults.
void read_pylate(const std::string& file, ColbertConfig& config) {
  const Json json = read_object(file);
  read(file, json, "query_prefix", config.query_prefix);
  read(file, json, "document_prefix", config.document_prefix);
  read(file, json, "query_length", config.query_length);
  read(file, json, "document_length", config.document_length);
  read(file, json, "attend_to_expansion_tokens", config.attend_to_expansion_tokens);
  read(file, json, "do_query_expansion", config.do_query_expansion);
  read(file, json, "skiplist_words", config.skiplist_words);
}

// sentence-transformers 6: prompts are the prefixes; the Transformer module has the lengths.
void read_multi_vector(const std::string& directory, const Modules& modules,
                       ColbertConfig& config) {
  std::string file = directory + "/config_sentence_transformers.json";
  const Json json = read_object(file);
  config.query_prefix = config.document_prefix = "";
  if (json.contains("prompts") && json["prompts"].is_object()) {
    read(file, json["prompts"], "query", config.query_prefix);
    read(file, json["prompts"], "document", config.document_prefix);
  }
  file = modules.transformer + "/sentence_bert_config.json";
  const Json transformer = read_object(file);
  read(file, transformer, "query_length", config.query_length);
  read(file, transformer, "document_length", config.document_length);
  const auto expansion = transformer.find("query_expansion");
  config.do_query_expansion = expansion != transformer.end() && expansion->is_object();
  if (config.do_query_expansion) {
    std::string strategy = "fixed", token = "[MASK]";
    read(file, *expansion, "strategy", strategy);
    read(file, *expansion, "token", token);
    if (strategy != "fixed" || token != "[MASK]")
      fail_input("{}: query_expansion {}: only the strategy fixed with [MASK] is built", file,
                 expansion->dump());
    read(file, *expansion, "length", config.query_length);
    read(file, *expansion, "attend", config.attend_to_expansion_tokens);
  }
  file = modules.mask + "/config.json";
  const Json mask = read_object(file);
  if (mask.contains("keep_only_token_ids") && !mask["keep_only_token_ids"].is_null())
    fail_input("{}: keep_only_token_ids is not built", file);
  config.skiplist_words.clear();
  read(file, mask, "skiplist_words", config.skiplist_words);
}

// Stanford's artifact.metadata; the markers are words of the vocabulary.
void read_stanford(const std::string& directory, ColbertConfig& config) {
  config.query_prefix = "[unused0]";
  config.document_prefix = "[unused1]";
  const std::string file = directory + "/artifact.metadata";
  if (!file_exists(file)) return;
  const Json json = read_object(file);
  read(file, json, "query_token_id", config.query_prefix);
  read(file, json, "doc_token_id", config.document_prefix);
  read(file, json, "query_maxlen", config.query_length);
  read(file, json, "doc_maxlen", config.document_length);
  read(file, json, "attend_to_mask_tokens", config.attend_to_expansion_tokens);
}

bool is_stanford(const std::string& directory) {
  const std::string file = directory + "/config.json";
  const Json json = read_object(file);
  const auto names = json.find("architectures");
  return names != json.end() && names->is_array() && !names->empty() && (*names)[0] == "HF_ColBERT";
}

}  // namespace

CheckpointFormat read_checkpoint_format(const std::string& directory) {
  if (!std::filesystem::is_directory(directory))
    fail_input("{}: no such model directory", directory);
  CheckpointFormat format;
  format.transformer = directory;
  format.colbert.skiplist_words = punctuation();
  if (file_exists(directory + "/modules.json")) {
    const Modules modules = read_modules(directory);
    const std::string config = directory + "/config_sentence_transformers.json";
    format.transformer = modules.transformer;
    format.dense = modules.dense;
    if (!modules.mask.empty()) {
      format.name = "sentence-transformers multi-vector";
      read_multi_vector(directory, modules, format.colbert);
    } else if (!modules.dense.empty() && !modules.pooling) {
      format.name = "PyLate";
      if (file_exists(config)) read_pylate(config, format.colbert);
    } else {
      format.name = "sentence-transformers";
    }
  } else if (!file_exists(directory + "/config.json")) {
    fail_input("{}: no config.json: this is not a model directory", directory);
  } else if (is_stanford(directory)) {
    format.name = "Stanford ColBERT";
    format.projection_in_encoder = true;
    read_stanford(directory, format.colbert);
  } else {
    format.name = "Hugging Face BERT";
  }
  return format;
}

}  // namespace maxim

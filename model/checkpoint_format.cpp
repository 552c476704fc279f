#include "model/checkpoint_format.h"

#include <algorithm>
#include <filesystem>

#include "model/config_reader.h"
#include "runtime/error.h"
#include "runtime/files.h"

namespace maxim {
namespace {

// Lengths beyond this cannot be meant; whether a length fits the model is checked where it is used.
constexpr int64_t kLongestText = 65535;

// Python's string.punctuation, one word a character: PyLate's default skiplist.
std::vector<std::string> punctuation() {
  std::vector<std::string> words;
  for (const char c : std::string("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")) words.emplace_back(1, c);
  return words;
}

struct Module {
  std::string path;  // directory, "" or relative to the model's
  std::string type;  // as written, with its package
  std::string kind;  // the last part of type: "Transformer", "Dense", …
};

std::vector<Module> read_modules(const std::string& file) {
  std::vector<Module> modules;
  const nlohmann::ordered_json json = read_json(file);
  if (!json.is_array()) fail_input("{}: expected a list of modules", file);
  for (const auto& entry : json) {
    const auto text = [&](const char* key) {
      if (!entry.is_object() || !entry.contains(key) || !entry.at(key).is_string())
        fail_input("{}: module {} has no {}", file, modules.size(), key);
      return entry.at(key).get<std::string>();
    };
    const std::string type = text("type");
    modules.push_back({text("path"), type, type.substr(type.rfind('.') + 1)});
  }
  return modules;
}

std::string join(const std::string& directory, const std::string& name) {
  return name.empty() ? directory : directory + "/" + name;
}

// A projection has to be y = W x.
void check_projection(const std::string& directory) {
  const ConfigReader config(join(directory, "config.json"));
  config.require("bias", false, "a projection with a bias is not built");
  config.require("use_residual", false, "a projection with a residual is not built");
  if (!config.has("activation_function"))  // sentence-transformers' default is Tanh
    fail_input("{}: activation_function is missing", config.file());
  config.require("activation_function", "torch.nn.modules.linear.Identity",
                 "a projection with an activation is not built");
}

// The keys that PyLate writes into config_sentence_transformers.json.
ColbertConfig read_pylate_config(const ConfigReader& config) {
  const ColbertConfig defaults;
  ColbertConfig colbert;
  colbert.query_prefix = config.text("query_prefix", defaults.query_prefix);
  colbert.document_prefix = config.text("document_prefix", defaults.document_prefix);
  colbert.query_length = config.size("query_length", kLongestText, defaults.query_length);
  colbert.document_length = config.size("document_length", kLongestText, defaults.document_length);
  colbert.do_query_expansion = config.flag("do_query_expansion", defaults.do_query_expansion);
  colbert.attend_to_expansion_tokens =
      config.flag("attend_to_expansion_tokens", defaults.attend_to_expansion_tokens);
  colbert.skiplist_words = config.texts("skiplist_words", punctuation());
  return colbert;
}

bool has_pylate_marks(const ConfigReader& config) {
  const char* const keys[] = {"query_prefix",   "document_prefix",    "query_length",
                              "skiplist_words", "do_query_expansion", "document_length"};
  return config.text("model_type", "") == "ColBERT" ||
         std::any_of(std::begin(keys), std::end(keys),
                     [&](const char* key) { return config.has(key); });
}

// sentence-transformers 6 puts a prompt before the text; Maxim and PyLate insert one token. They
// are the same thing when the vocabulary has the prompt as one token.
std::string read_prompt(const ConfigReader& config, const char* which,
                        const nlohmann::ordered_json& tokenizer) {
  const nlohmann::ordered_json prompts =
      config.has("prompts") ? config.json().at("prompts") : nlohmann::ordered_json::object();
  if (!prompts.is_object() || !prompts.contains(which) || prompts.at(which).is_null()) return "";
  if (!prompts.at(which).is_string())
    fail_input("{}: the prompt {} is no string", config.file(), which);
  const auto prompt = prompts.at(which).get<std::string>();
  if (prompt.empty()) return prompt;
  if (tokenizer.contains("added_tokens") && tokenizer.at("added_tokens").is_array())
    for (const auto& token : tokenizer.at("added_tokens"))
      if (token.is_object() && token.contains("content") && token.at("content") == prompt)
        return prompt;
  fail_input(
      "{}: the {} prompt \"{}\" is no added token of tokenizer.json; Maxim has prefixes of one "
      "token only",
      config.file(), which, prompt);
}

void read_query_expansion(const ConfigReader& transformer, ColbertConfig& colbert) {
  colbert.do_query_expansion = transformer.has("query_expansion");
  if (!colbert.do_query_expansion) return;
  const nlohmann::ordered_json& expansion = transformer.json().at("query_expansion");
  const auto refuse = [&](const char* expected) {
    fail_input("{}: query_expansion is {}, expected {}", transformer.file(), expansion.dump(),
               expected);
  };
  if (!expansion.is_object()) refuse("an object");
  if (expansion.value("strategy", nlohmann::ordered_json()) != "fixed")
    refuse("the strategy \"fixed\"");
  const auto token = expansion.value("token", nlohmann::ordered_json());
  if (!token.is_null() && token != "[MASK]") refuse("the token [MASK]");
  const auto length = expansion.value("length", nlohmann::ordered_json());
  if (!length.is_number_unsigned() || length.get<uint64_t>() < 1 ||
      length.get<uint64_t>() > kLongestText)
    refuse("a length");
  colbert.query_length = length.get<int64_t>();
  const auto attend = expansion.value("attend", nlohmann::ordered_json(false));
  if (!attend.is_boolean()) refuse("attend true or false");
  colbert.attend_to_expansion_tokens = attend.get<bool>();
}

// Tokens that a text may have where the model gives no length: what the tokenizer cuts at.
int64_t longest_text(const std::string& transformer, const BertConfig& bert) {
  const std::string file = join(transformer, "tokenizer_config.json");
  if (!file_exists(file)) return bert.max_position_embeddings;
  const ConfigReader tokenizer(file);
  if (!tokenizer.has("model_max_length")) return bert.max_position_embeddings;
  // transformers writes 1e30 for "no limit".
  const nlohmann::ordered_json& length = tokenizer.json().at("model_max_length");
  if (!length.is_number() || length.get<double>() < 1)
    fail_input("{}: model_max_length is {}", file, length.dump());
  return std::min(static_cast<double>(bert.max_position_embeddings), length.get<double>());
}

// sentence-transformers 6 keeps what PyLate has in one file with the module that it concerns.
ColbertConfig read_multi_vector_config(const std::string& directory, const CheckpointFormat& format,
                                       const std::string& mask_directory) {
  ColbertConfig colbert;
  const ConfigReader model(join(directory, "config_sentence_transformers.json"));
  const nlohmann::ordered_json tokenizer = read_json(join(format.transformer, "tokenizer.json"));
  colbert.query_prefix = read_prompt(model, "query", tokenizer);
  colbert.document_prefix = read_prompt(model, "document", tokenizer);

  const int64_t longest = longest_text(format.transformer, format.bert);
  const ConfigReader transformer(join(format.transformer, "sentence_bert_config.json"));
  colbert.document_length = transformer.size("document_length", kLongestText, longest);
  colbert.query_length = transformer.size("query_length", kLongestText, longest);
  read_query_expansion(transformer, colbert);

  const ConfigReader mask(join(mask_directory, "config.json"));
  mask.require("skiplist_tasks", {"document"}, "only documents have a skiplist here");
  if (mask.has("keep_only_token_ids"))
    fail_input("{}: keep_only_token_ids is not built", mask.file());
  colbert.skiplist_words = mask.texts("skiplist_words", {});
  return colbert;
}

// The one module of a kind, or none.
const Module* only(const std::string& file, const std::vector<Module>& modules, const char* kind) {
  const Module* found = nullptr;
  for (const Module& module : modules) {
    if (module.kind != kind) continue;
    if (found != nullptr)
      fail_input("{}: two {} modules ({} and {}), expected one", file, kind, found->path,
                 module.path);
    found = &module;
  }
  return found;
}

void read_modules_checkpoint(const std::string& directory, CheckpointFormat& format) {
  const std::string file = join(directory, "modules.json");
  const std::vector<Module> modules = read_modules(file);
  const Module* transformer = only(file, modules, "Transformer");
  const Module* dense = only(file, modules, "Dense");
  const Module* mask = only(file, modules, "MultiVectorMask");
  if (transformer == nullptr) fail_input("{}: no Transformer module", file);
  for (const Module& m : modules)
    if (&m != transformer && &m != dense && &m != mask && m.kind != "Pooling" &&
        m.kind != "Normalize")
      fail_input("{}: a module of type {} is not built", file, m.type);
  format.transformer = join(directory, transformer->path);
  format.bert = read_bert_config(join(format.transformer, "config.json"));
  if (dense != nullptr) {
    format.dense = join(directory, dense->path);
    check_projection(format.dense);
  }
  format.name = "sentence-transformers";
  if (dense != nullptr && dense->type.starts_with("pylate.")) format.name = "PyLate";
  const std::string config = join(directory, "config_sentence_transformers.json");
  if (mask != nullptr) {
    format.name = "sentence-transformers 6 multi-vector";
    format.colbert = read_multi_vector_config(directory, format, join(directory, mask->path));
  } else if (file_exists(config)) {
    const ConfigReader reader(config);
    if (has_pylate_marks(reader)) format.name = "PyLate";
    format.colbert = read_pylate_config(reader);
  }
}

// The configuration of a Stanford ColBERT is JSON in a file of its own; what it lacks has these
// defaults (PyLate's loader has the same).
ColbertConfig read_stanford_config(const std::string& directory) {
  ColbertConfig colbert;
  colbert.query_prefix = "[unused0]";
  colbert.document_prefix = "[unused1]";
  colbert.skiplist_words = punctuation();
  const std::string file = join(directory, "artifact.metadata");
  if (!file_exists(file)) return colbert;
  const ConfigReader metadata(file);
  colbert.query_prefix = metadata.text("query_token_id", colbert.query_prefix);
  colbert.document_prefix = metadata.text("doc_token_id", colbert.document_prefix);
  colbert.query_length = metadata.size("query_maxlen", kLongestText, colbert.query_length);
  colbert.document_length = metadata.size("doc_maxlen", kLongestText, colbert.document_length);
  colbert.attend_to_expansion_tokens =
      metadata.flag("attend_to_mask_tokens", colbert.attend_to_expansion_tokens);
  return colbert;
}

bool is_stanford(const std::string& directory, const BertConfig& bert) {
  const auto names = bert.source.find("architectures");
  return file_exists(join(directory, "artifact.metadata")) ||
         (names != bert.source.end() && names->is_array() && !names->empty() &&
          names->front() == "HF_ColBERT");
}

}  // namespace

CheckpointFormat read_checkpoint_format(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error))
    fail_input("{}: {}", directory,
               file_exists(directory) ? "not a directory"
               : error && error != std::errc::no_such_file_or_directory
                   ? error.message()
                   : "there is no such model directory");
  CheckpointFormat format;
  format.colbert.skiplist_words = punctuation();
  if (file_exists(join(directory, "modules.json"))) {
    read_modules_checkpoint(directory, format);
    return format;
  }
  const std::string config = join(directory, "config.json");
  if (!file_exists(config)) fail_input("{}: no config.json: this is no model directory", directory);
  format.transformer = directory;
  format.bert = read_bert_config(config);
  format.name = "Hugging Face BERT";
  if (is_stanford(directory, format.bert)) {
    format.name = "Stanford ColBERT";
    format.projection_in_encoder = true;
    format.colbert = read_stanford_config(directory);
  }
  return format;
}

}  // namespace maxim

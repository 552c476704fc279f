#include "data/tokenizer_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "data/bert_unicode.h"
#include "data/json_members.h"
#include "data/text_lines.h"
#include "data/tokenizer_json.h"
#include "runtime/error.h"
#include "runtime/files.h"

namespace maxim {

namespace {

using Json = nlohmann::ordered_json;

// A line ends with LF, and whitespace before it is no part of the word, be it CR, U+0085 or U+2028:
// so `tokenizers` reads the file.
void read_vocab_txt(const std::string& path, TokenizerDefinition& d) {
  const MappedFile file(path);
  std::string_view rest = file.text();
  if (rest.starts_with("\xEF\xBB\xBF"))
    fail_input(
        "{}: line 1: starts with a byte order mark, which would be part of the first word; save "
        "the file without one",
        path);
  int64_t repeated = 0;
  std::string example;
  for (; !rest.empty(); ++d.size) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const int64_t line = int64_t{d.size} + 1;
    if (find_invalid_utf8(word) >= 0) fail_input("{}: line {}: not UTF-8", path, line);
    if (d.size > TokenizerDefinition::kHighestId)
      fail_input("{}: line {}: more words than Maxim's limit", path, line);
    while (!word.empty()) {
      const CodePoint last = decode_utf8_backwards(word.data(), word.data() + word.size());
      if (!is_whitespace(last.value)) break;
      word.remove_suffix(last.bytes);
    }
    const auto [known, is_new] = d.vocabulary.try_emplace(std::string(word), d.size);
    if (is_new) continue;
    if (repeated++ == 0)
      example =
          fmt::format("line {}: \"{}\" stands in line {} already", line, word, known->second + 1);
    known->second = d.size;
  }
  if (repeated > 0)
    d.warnings.push_back(
        fmt::format("{}: {} ({} such line{}); the last of them gives the id, as for Hugging Face, "
                    "and no token can be added to this vocabulary",
                    path, example, repeated, repeated == 1 ? "" : "s"));
}

// tokenizer_config.json and the older special_tokens_map.json, whose values win.
struct Configuration {
  std::string path, older_path;
  Json config = Json::object(), older = Json::object();

  struct Value {
    const Json* value;  // nullptr: neither file has one
    const std::string* path;
  };
  Value find(const char* key) const {
    if (const auto found = older.find(key); found != older.end() && !found->is_null())
      return {&*found, &older_path};
    if (const auto found = config.find(key); found != config.end() && !found->is_null())
      return {&*found, &path};
    return {nullptr, &path};
  }
};

Json read_object(const std::string& path) {
  Json value = read_json(path);
  if (!value.is_object()) fail_input("{}: not a JSON object", path);
  return value;
}

Configuration read_configuration(const std::string& directory) {
  Configuration c;
  c.path = directory + "/tokenizer_config.json";
  c.older_path = directory + "/special_tokens_map.json";
  if (file_exists(c.path)) c.config = read_object(c.path);
  if (!c.config.contains("added_tokens_decoder") && file_exists(c.older_path))
    c.older = read_object(c.older_path);
  return c;
}

// added_tokens_decoder {"id": {...}}, else added_tokens.json {"token": id}; in the order of ids.
void read_more_added_tokens(const std::string& directory, const Configuration& c,
                            TokenizerDefinition& d) {
  std::map<int64_t, AddedToken> tokens;
  std::string path = c.path;
  if (const auto decoder = c.config.find("added_tokens_decoder"); decoder != c.config.end()) {
    if (!decoder->is_object()) fail_input("{}: added_tokens_decoder is not an object", path);
    for (const auto& [key, entry] : decoder->items()) {
      if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != key.npos)
        fail_input("{}: added_tokens_decoder: \"{}\" is not an id", path, key);
      tokens[std::stoll(key)] = parse_added_token(entry, false, path);
    }
  } else if (path = directory + "/added_tokens.json"; file_exists(path)) {
    const Json list = read_object(path);
    for (const auto& [content, entry] : list.items()) {
      AddedToken token;
      token.content = content;
      if (const AddedToken* known = d.added_token(content)) token = *known;
      tokens[json_member<int64_t>(list, "the list", content.c_str(), path)] = token;
    }
  }
  for (const auto& [id, token] : tokens) {
    if (const AddedToken* known = d.added_token(token.content)) {
      AddedToken same = token;
      same.id = known->id;
      if (!(same == *known))
        d.warnings.push_back(
            fmt::format("{}: overrides the flags that tokenizer.json gives the added token \"{}\"",
                        path, token.content));
    }
    add_listed_token(d, token, id, path);
  }
}

// The names of the special tokens. With vocab.txt alone these are what makes them added tokens, and
// one that BERT does not need ([PAD]) gets a new id if it is no word, as Hugging Face gives it one.
void read_special_tokens(const std::string& directory, const Configuration& c,
                         TokenizerDefinition& d) {
  const bool from_vocab_txt = d.tokenizer_json.is_null();
  std::string unk = d.unk_token, pad = "[PAD]", bos, eos;
  const std::pair<const char*, std::string*> names[] = {
      {"bos_token", &bos},          {"eos_token", &eos}, {"unk_token", &unk},
      {"sep_token", &d.sep_token},  {"pad_token", &pad}, {"cls_token", &d.cls_token},
      {"mask_token", &d.mask_token}};
  for (const auto& [key, name] : names) {
    const auto [value, path] = c.find(key);
    AddedToken token = parse_added_token(value ? *value : Json(*name), true, *path);
    *name = token.content;
    if (!from_vocab_txt || token.content.empty()) continue;
    const bool needed =
        name == &unk || name == &d.sep_token || name == &d.cls_token || name == &d.mask_token;
    if (d.added_token(token.content) || (needed && d.id_of(token.content) < 0)) continue;
    if (d.id_of(token.content) < 0)
      d.warnings.push_back(fmt::format("{}/vocab.txt: lacks the {} \"{}\"; it gets the next id",
                                       directory, key, token.content));
    token.special = true;
    d.add(std::move(token), *path);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto [value, path] = c.find(key);
    if (value == nullptr || !from_vocab_txt) continue;
    if (!value->is_array()) fail_input("{}: {} is not a list", *path, key);
    for (const Json& entry : *value) {
      AddedToken token = parse_added_token(entry, true, *path);
      token.special = true;
      if (d.added_token(token.content) == nullptr) d.add(std::move(token), *path);
    }
  }
  if (from_vocab_txt) d.unk_token = unk;

  for (const auto& [key, token] : {std::pair{"cls_token", d.cls_token},
                                   {"sep_token", d.sep_token},
                                   {"unk_token", d.unk_token},
                                   {"mask_token", d.mask_token}})
    if (d.id_of(token) < 0)
      fail_input(
          "{}: the vocabulary lacks the {} \"{}\"; name another one in tokenizer_config.json",
          directory, key, token);
  if (!d.vocabulary.contains(d.unk_token))
    fail_input("{}: the unk_token \"{}\" is an added token, not a word of the vocabulary",
               directory, d.unk_token);
}

std::optional<bool> read_flag(const Configuration& c, const char* key) {
  const auto found = c.config.find(key);
  if (found == c.config.end() || found->is_null()) return std::nullopt;
  return json_member<bool>(c.config, "the file", key, c.path);
}

const char* show(const std::optional<bool>& flag) {
  return !flag ? "null" : *flag ? "true" : "false";
}

// Words that lower-cased text cannot match. Special tokens are upper-case in all vocabularies.
void warn_of_upper_case(const std::string& directory, TokenizerDefinition& d) {
  int64_t count = 0;
  std::string_view example;
  for (const auto& [word, id] : d.vocabulary) {
    if (word.starts_with('[') && word.ends_with(']')) continue;
    const char* end = word.data() + word.size();
    for (const char* p = word.data(); p < end;) {
      const CodePoint c = decode_utf8(p, end);
      char32_t lower[2];
      if (lower_case(c.value, lower) != 1 || lower[0] != c.value) {
        ++count;
        if (example.empty() || word < example) example = word;
        break;
      }
      p += c.bytes;
    }
  }
  if (count > 0)
    d.warnings.push_back(fmt::format(
        "{}: {} words of the vocabulary have upper-case letters, such as \"{}\": if the model is a "
        "cased one, put \"do_lower_case\": false into tokenizer_config.json",
        directory, count, example));
}

// do_lower_case, strip_accents and tokenize_chinese_chars. A tokenizer_class of no model in
// particular takes tokenizer.json as it is.
void read_normalizer_flags(const std::string& directory, const Configuration& c,
                           TokenizerDefinition& d) {
  const bool from_vocab_txt = d.tokenizer_json.is_null();
  const auto lowercase = read_flag(c, "do_lower_case");
  const auto chinese = read_flag(c, "tokenize_chinese_chars");
  const auto strip = read_flag(c, "strip_accents");
  const auto override_with = [&](const char* key, auto& flag, const std::optional<bool>& value) {
    if (!from_vocab_txt && value != std::optional<bool>(flag))
      d.warnings.push_back(fmt::format("{}: \"{}\": {} overrides tokenizer.json's {}", c.path, key,
                                       show(value), show(flag)));
    if constexpr (std::is_same_v<decltype(flag), bool&>)
      flag = *value;
    else
      flag = value;
  };
  const auto tokenizer_class = c.config.find("tokenizer_class");
  if (!from_vocab_txt && tokenizer_class != c.config.end() &&
      (*tokenizer_class == "PreTrainedTokenizerFast" || *tokenizer_class == "TokenizersBackend"))
    return;
  if (lowercase) override_with("do_lower_case", d.lowercase, lowercase);
  if (chinese) override_with("tokenize_chinese_chars", d.handle_chinese_chars, chinese);
  if (c.config.contains("strip_accents")) override_with("strip_accents", d.strip_accents, strip);

  if (!lowercase && from_vocab_txt) {
    d.warnings.push_back(fmt::format(
        "{}: neither tokenizer.json nor do_lower_case in tokenizer_config.json is there: texts are "
        "lower-cased, which is the default",
        directory));
    warn_of_upper_case(directory, d);
  }
  if (!lowercase && !d.lowercase)
    d.warnings.push_back(fmt::format(
        "{}: tokenizer.json keeps upper case, and so does Maxim; but without \"do_lower_case\": "
        "false in tokenizer_config.json, transformers would lower-case texts",
        directory));
}

}  // namespace

TokenizerDefinition read_tokenizer_files(const std::string& directory) {
  TokenizerDefinition d;
  const std::string json = directory + "/tokenizer.json", text = directory + "/vocab.txt";
  if (file_exists(json))
    read_tokenizer_json(json, d);
  else if (file_exists(text))
    read_vocab_txt(text, d);
  else
    fail_input("{}: there is neither tokenizer.json nor vocab.txt", directory);
  try {
    const Configuration c = read_configuration(directory);
    d.tokenizer_config = c.config;
    read_more_added_tokens(directory, c, d);
    read_special_tokens(directory, c, d);
    read_normalizer_flags(directory, c, d);
  } catch (const nlohmann::json::exception& e) {
    fail_input("{}: tokenizer_config.json or a file beside it: {}", directory, e.what());
  }
  return d;
}

void write_tokenizer_files(const std::string& directory, const TokenizerDefinition& d) {
  write_tokenizer_json(directory + "/tokenizer.json", d);

  nlohmann::json config =
      d.tokenizer_config.is_object() ? d.tokenizer_config : nlohmann::json::object();
  for (const char* key : {"added_tokens_decoder", "additional_special_tokens", "name_or_path",
                          "special_tokens_map_file", "tokenizer_file", "vocab_file"})
    config.erase(key);
  // "No limit" is 1e30 cut to an integer, which no JSON number of ours holds; it is the default.
  if (const auto length = config.find("model_max_length");
      length != config.end() && length->is_number_float())
    config.erase(length);
  config["backend"] = "tokenizers";
  config["tokenizer_class"] = "BertTokenizer";
  config.emplace("is_local", true);
  config["cls_token"] = d.cls_token;
  config["sep_token"] = d.sep_token;
  config["unk_token"] = d.unk_token;
  config["mask_token"] = d.mask_token;
  config["pad_token"] = d.mask_token;
  config["do_lower_case"] = d.lowercase;
  config["tokenize_chinese_chars"] = d.handle_chinese_chars;
  config["strip_accents"] = d.strip_accents ? nlohmann::json(*d.strip_accents) : nullptr;
  write_text(directory + "/tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace maxim

#include "data/tokenizer_json.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "data/json_members.h"
#include "runtime/error.h"
#include "runtime/files.h"

namespace maxim {

namespace {

using Json = nlohmann::ordered_json;

// The parsed file, with the words of model.vocab taken out of it into the definition: as members of
// an ordered_json, which compares each new key with all before it, 30,000 words take 0.5 s.
Json parse(const std::string& path, TokenizerDefinition& definition) {
  const MappedFile file(path);
  std::string keys[3], word;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth < 3) keys[depth] = parsed.get<std::string>();
    if (depth != 3 || keys[1] != "model" || keys[2] != "vocab") return true;
    switch (event) {
      case Json::parse_event_t::key:
        word = parsed.get<std::string>();
        return false;
      case Json::parse_event_t::value:
        if (!parsed.is_number_unsigned() ||
            parsed.get<uint64_t>() > uint64_t{TokenizerDefinition::kHighestId})
          fail_input("{}: model.vocab: the id of \"{}\" is {}, not a number up to {}", path, word,
                     parsed.dump(), TokenizerDefinition::kHighestId);
        definition.vocabulary.insert_or_assign(word, parsed.get<int32_t>());
        return false;
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        fail_input("{}: model.vocab: the id of \"{}\" is not a number", path, word);
      default:
        return true;
    }
  };
  try {
    return Json::parse(file.text(), callback);
  } catch (const nlohmann::json::exception& e) {
    fail_input("{}: not valid JSON: {}", path, e.what());
  }
}

std::vector<std::pair<int32_t, std::string_view>> words_by_id(const TokenizerDefinition& d) {
  std::vector<std::pair<int32_t, std::string_view>> words;
  words.reserve(d.vocabulary.size());
  for (const auto& [word, id] : d.vocabulary) words.emplace_back(id, word);
  std::sort(words.begin(), words.end());
  return words;
}

const Json& section(const Json& document, const char* key, const char* type,
                    const std::string& path) {
  const auto found = document.find(key);
  if (found == document.end() || !found->is_object())
    fail_input("{}: \"{}\" is missing or not an object", path, key);
  const auto is = json_member_or<std::string>(type, *found, key, "type", path);
  if (is != type) fail_input("{}: {} is a {}; Maxim reads {}", path, key, is, type);
  return *found;
}

void read_model(const Json& document, const std::string& path, TokenizerDefinition& d) {
  const Json& model = section(document, "model", "WordPiece", path);
  if (!model.contains("vocab") || !model["vocab"].is_object())
    fail_input("{}: model.vocab is missing or not an object", path);
  d.unk_token = json_member<std::string>(model, "model", "unk_token", path);
  d.continuing_subword_prefix =
      json_member<std::string>(model, "model", "continuing_subword_prefix", path);
  d.max_input_chars_per_word =
      json_member<int64_t>(model, "model", "max_input_chars_per_word", path);

  const auto words = words_by_id(d);
  for (size_t i = 1; i < words.size(); ++i)
    if (words[i].first == words[i - 1].first)
      fail_input("{}: model.vocab: \"{}\" and \"{}\" have the same id {}", path,
                 words[i - 1].second, words[i].second, words[i].first);
  d.size = words.empty() ? 0 : words.back().first + 1;
}

Json added_tokens_json(const TokenizerDefinition& d) {
  std::vector<AddedToken> tokens = d.added_tokens;
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  Json list = Json::array();
  for (const AddedToken& t : tokens)
    list.push_back({{"id", t.id},
                    {"content", t.content},
                    {"single_word", t.single_word},
                    {"lstrip", t.lstrip},
                    {"rstrip", t.rstrip},
                    {"normalized", t.normalized},
                    {"special", t.special}});
  return list;
}

// The document that transformers 5 makes from a vocab.txt, less the words and what is set below.
Json new_document(const TokenizerDefinition& d) {
  const auto special = [](const std::string& token, int type) {
    return Json{{"SpecialToken", {{"id", token}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto ids = [&](const std::string& token) {
    return Json{{"id", token}, {"ids", {d.id_of(token)}}, {"tokens", {token}}};
  };
  const Json cls = special(d.cls_token, 0), sep = special(d.sep_token, 0);
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", Json::array()},
      {"normalizer", {{"type", "BertNormalizer"}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array({cls, text("A", 0), sep})},
        {"pair", Json::array({cls, text("A", 0), sep, text("B", 1), special(d.sep_token, 1)})},
        {"special_tokens", {{d.cls_token, ids(d.cls_token)}, {d.sep_token, ids(d.sep_token)}}}}},
      {"decoder",
       {{"type", "WordPiece"}, {"prefix", d.continuing_subword_prefix}, {"cleanup", true}}},
      {"model", {{"type", "WordPiece"}}}};
}

}  // namespace

AddedToken parse_added_token(const Json& entry, bool special, const std::string& path) {
  constexpr const char* kName = "an added token";
  AddedToken token;
  if (entry.is_string()) {
    token.content = entry.get<std::string>();
    token.special = special;
    token.normalized = !special;
    return token;
  }
  if (!entry.is_object())
    fail_input("{}: {} is {}, not a string or an object", path, kName, entry.dump());
  token.content = json_member<std::string>(entry, kName, "content", path);
  token.special = json_member_or(special, entry, kName, "special", path);
  token.normalized = json_member_or(!token.special, entry, kName, "normalized", path);
  token.single_word = json_member_or(false, entry, kName, "single_word", path);
  token.lstrip = json_member_or(false, entry, kName, "lstrip", path);
  token.rstrip = json_member_or(false, entry, kName, "rstrip", path);
  return token;
}

void add_listed_token(TokenizerDefinition& definition, AddedToken token, int64_t stated,
                      const std::string& path) {
  const std::string content = token.content;
  const int32_t id = definition.add(std::move(token), path);
  if (id != stated)
    fail_input(
        "{}: the added token \"{}\" is listed with id {}, but Hugging Face would give it {}: the "
        "vocabulary or the list is incomplete",
        path, content, stated, id);
}

void read_tokenizer_json(const std::string& path, TokenizerDefinition& d) {
  d.tokenizer_json = parse(path, d);
  const Json& document = d.tokenizer_json;
  if (!document.is_object()) fail_input("{}: not a JSON object", path);
  const auto version = json_member_or<std::string>("1.0", document, "the file", "version", path);
  if (version != "1.0") fail_input("{}: version {}; Maxim reads 1.0", path, version);
  read_model(document, path, d);

  const char* name = "normalizer";
  const Json& normalizer = section(document, name, "BertNormalizer", path);
  d.clean_text = json_member<bool>(normalizer, name, "clean_text", path);
  d.handle_chinese_chars = json_member<bool>(normalizer, name, "handle_chinese_chars", path);
  d.lowercase = json_member<bool>(normalizer, name, "lowercase", path);
  if (normalizer.contains("strip_accents") && !normalizer["strip_accents"].is_null())
    d.strip_accents = json_member<bool>(normalizer, name, "strip_accents", path);
  section(document, "pre_tokenizer", "BertPreTokenizer", path);

  const auto added = document.find("added_tokens");
  if (added == document.end()) return;
  if (!added->is_array()) fail_input("{}: \"added_tokens\" is not a list", path);
  for (const Json& entry : *added) {
    AddedToken token = parse_added_token(entry, false, path);
    if (d.added_token(token.content) != nullptr)
      fail_input("{}: the added token \"{}\" is listed twice", path, token.content);
    add_listed_token(d, token, json_member<int64_t>(entry, "an added token", "id", path), path);
  }
}

void write_tokenizer_json(const std::string& path, const TokenizerDefinition& d) {
  Json document = d.tokenizer_json.is_null() ? new_document(d) : d.tokenizer_json;
  document["truncation"] = nullptr;
  document["padding"] = nullptr;
  document["added_tokens"] = added_tokens_json(d);
  Json& normalizer = document["normalizer"];
  normalizer["clean_text"] = d.clean_text;
  normalizer["handle_chinese_chars"] = d.handle_chinese_chars;
  normalizer["strip_accents"] = d.strip_accents ? Json(*d.strip_accents) : Json(nullptr);
  normalizer["lowercase"] = d.lowercase;
  Json& model = document["model"];
  model["unk_token"] = d.unk_token;
  model["continuing_subword_prefix"] = d.continuing_subword_prefix;
  model["max_input_chars_per_word"] = d.max_input_chars_per_word;
  // Straight into the vector that an ordered object is: see parse().
  auto& vocabulary = (model["vocab"] = Json::object()).get_ref<Json::object_t&>();
  vocabulary.reserve(d.vocabulary.size());
  for (const auto& [id, word] : words_by_id(d)) vocabulary.emplace_back(std::string(word), id);
  write_text(path, document.dump(2));
}

}  // namespace maxim

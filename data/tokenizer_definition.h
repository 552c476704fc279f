// What a tokenizer's files say, in one place: words, added tokens, options.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/added_tokens.h"
#include "data/bert_normalizer.h"

namespace maxim {

struct StringHash {  // lets a map of strings be asked with a string_view
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

struct TokenizerDefinition {
  // Larger than any vocabulary, small enough that a wild id does not ask for a terabyte of weights.
  static constexpr int32_t kHighestId = (1 << 24) - 1;

  // The words of the model. Their ids may have gaps, where vocab.txt repeats a word.
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> vocabulary;
  std::vector<AddedToken> added_tokens;  // in the order in which they were added
  int32_t size = 0;                      // highest id + 1

  bool clean_text = true, handle_chinese_chars = true, lowercase = true;
  std::optional<bool> strip_accents;  // without a value: as lowercase
  std::string continuing_subword_prefix = "##";
  int64_t max_input_chars_per_word = 100;
  std::string unk_token = "[UNK]", cls_token = "[CLS]", sep_token = "[SEP]", mask_token = "[MASK]";

  nlohmann::ordered_json tokenizer_json;  // all of it but the words; null: there was none
  nlohmann::json tokenizer_config;        // as it was, keys sorted; null: there was none
  std::vector<std::string> warnings;      // one line each

  NormalizerOptions normalizer() const {
    return {clean_text, handle_chinese_chars, strip_accents.value_or(lowercase), lowercase};
  }

  const AddedToken* added_token(std::string_view content) const;  // nullptr: there is none
  int32_t id_of(std::string_view token) const;  // -1: neither an added token nor a word

  // Makes `token` an added token and returns its id: the one its content has, else the next one as
  // `tokenizers` counts: the number of words, or one more than the highest added token. An added
  // token with the same content gets the new flags. Throws InputError, starting with `where`, when
  // the ids have gaps, since the next one may then belong to a word.
  int32_t add(AddedToken token, const std::string& where);
};

}  // namespace maxim

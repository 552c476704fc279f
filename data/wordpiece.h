// WordPiece with the token ids of Hugging Face's BertTokenizer (the `tokenizers` library).
// Source of the behaviour: tests/golden/tokenizer_cases.jsonl and tokenizer_unicode.json, made with
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace maxim {

class WordPiece {
 public:
  // Reads `directory`: tokenizer.json (model.type WordPiece, BertNormalizer, BertPreTokenizer,
  // added tokens), else vocab.txt with tokenizer_config.json, special_tokens_map.json and
  // added_tokens.json where they are. tokenizer_config's do_lower_case overrides the normaliser of
  // tokenizer.json, with a warning, since that is what transformers does. Throws InputError naming
  // the file, and the missing token when one of [CLS] [SEP] [UNK] [MASK] is absent.
  static WordPiece load(const std::string& directory);
  WordPiece(WordPiece&&) noexcept;
  WordPiece& operator=(WordPiece&&) noexcept;
  ~WordPiece();

  // Writes tokenizer.json and tokenizer_config.json as PyLate does (added tokens included, pad
  // token
  // "[MASK]"). Loading and saving again gives the same bytes.
  void save(const std::string& directory) const;

  int32_t size() const;                         // highest id + 1, added tokens included
  int32_t id_of(std::string_view token) const;  // -1 when the vocabulary lacks it
  // The id of `token`, appended after the last id as an added token (not special, normalized) if it
  // is new.
  int32_t add_token(const std::string& token);
  int32_t cls() const;
  int32_t sep() const;
  int32_t unk() const;
  int32_t mask() const;
  const std::vector<std::string>& warnings() const;  // of load(), one line each

  // Appends at most `limit` ids of `text` to `out`, without [CLS] and [SEP], and stops reading once
  // it has them (limit < 0: all). Returns true when something was cut off. Added tokens in the text
  // are found as `tokenizers` finds them. Invalid UTF-8 bytes count as U+FFFD. Thread-safe.
  bool encode(std::string_view text, int64_t limit, std::vector<int32_t>& out) const;

 private:
  struct State;
  explicit WordPiece(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace maxim

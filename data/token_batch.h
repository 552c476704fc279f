// Texts to packed token sequences: what PyLate's tokenize() does, without a padded row.
//
//   query     [CLS] prefix pieces… [SEP] [MASK]…   all rows are scored
//   document  [CLS] prefix pieces… [SEP]           rows whose id is in the skiplist are not scored
//
// A query is expanded with [MASK] to query_length; unless attend_to_expansion_tokens, these rows
// are no keys. Without do_query_expansion it ends at [SEP]. The length counts [CLS], prefix and
// [SEP], and [SEP] is always kept. Texts are stripped first, as by Python's str.strip().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/wordpiece.h"

namespace maxim {

// Host copy of a packed batch; the fields are those of `Sequences` in kernels/ops.h.
struct TokenBatch {
  std::vector<int32_t> token_ids, positions, sequence_of, offsets{0}, key_counts;
  std::vector<uint32_t> random_rows, random_columns;
  std::vector<int32_t> scored_rows, scored_offsets{0};
  int64_t longest = 0;
  int64_t queries = 0;  // the first `queries` sequences are queries, the others documents
  int64_t documents = 0;
  int64_t truncated_queries = 0, truncated_documents = 0;
  int64_t unknown_tokens = 0;
  void clear();  // keeps the capacity
  void reserve(int64_t tokens, int64_t sequences);
  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(key_counts.size()); }
};

struct TextSettings {
  std::string query_prefix = "[Q] ", document_prefix = "[D] ";  // "": no prefix token
  int64_t query_length = 32, document_length = 180;
  bool do_query_expansion = true;
  bool attend_to_expansion_tokens = false;
  std::vector<std::string> skiplist_words;
};

class TextEncoder {
 public:
  // Looks the prefixes and skiplist words up in `tokenizer`, which must outlive this and must have
  // the prefixes already (WordPiece::add_token). A skiplist word that the vocabulary lacks is left
  // out with a warning (PyLate would skip every [UNK]). Throws InputError when a length has no room
  // for [CLS], prefix, [SEP].
  TextEncoder(const WordPiece& tokenizer, const TextSettings& settings);

  // Append one sequence. Queries come before documents. `row` and `column` feed the dropout
  // counter.
  void append_query(TokenBatch& batch, std::string_view text, uint32_t row, uint32_t column) const;
  void append_document(TokenBatch& batch, std::string_view text, uint32_t row,
                       uint32_t column) const;

  const TextSettings& settings() const { return settings_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // [CLS] prefix pieces… [SEP] as a new sequence; returns whether the text was cut.
  bool append(TokenBatch& batch, std::string_view text, int32_t prefix_id, int64_t length,
              uint32_t row, uint32_t column) const;
  void close(TokenBatch& batch, int64_t keys, bool query) const;

  const WordPiece& tokenizer_;
  TextSettings settings_;
  int32_t query_prefix_id_ = -1, document_prefix_id_ = -1;
  std::vector<bool> skip_;  // by token id
  std::vector<std::string> warnings_;
};

}  // namespace maxim

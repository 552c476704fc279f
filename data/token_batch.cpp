#include "data/token_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/text_lines.h"
#include "runtime/error.h"

namespace maxim {

void TokenBatch::clear() {
  for (std::vector<int32_t>* v :
       {&token_ids, &positions, &sequence_of, &offsets, &key_counts, &scored_rows, &scored_offsets})
    v->clear();
  random_rows.clear();
  random_columns.clear();
  offsets.push_back(0);
  scored_offsets.push_back(0);
  longest = queries = documents = 0;
  truncated_queries = truncated_documents = unknown_tokens = 0;
}

void TokenBatch::reserve(int64_t tokens, int64_t sequences) {
  for (std::vector<int32_t>* v : {&token_ids, &positions, &sequence_of, &scored_rows})
    v->reserve(static_cast<size_t>(tokens));
  for (std::vector<int32_t>* v : {&offsets, &key_counts, &scored_offsets})
    v->reserve(static_cast<size_t>(sequences + 1));
  random_rows.reserve(static_cast<size_t>(sequences));
  random_columns.reserve(static_cast<size_t>(sequences));
}

TextEncoder::TextEncoder(const WordPiece& tokenizer, const TextSettings& settings)
    : tokenizer_(tokenizer), settings_(settings) {
  const auto prefix_id = [&](const std::string& prefix, int64_t length, const char* kind) {
    const int64_t least = prefix.empty() ? 2 : 3;
    if (length < least)
      fail_input("{}_length {} has no room for [CLS]{} and [SEP]: at least {}", kind, length,
                 prefix.empty() ? "" : ", the prefix", least);
    const int32_t id = prefix.empty() ? -1 : tokenizer.id_of(prefix);
    MAXIM_CHECK(prefix.empty() || id >= 0, "{}_prefix \"{}\" is not in the vocabulary", kind,
                prefix);
    return id;
  };
  query_prefix_id_ = prefix_id(settings.query_prefix, settings.query_length, "query");
  document_prefix_id_ = prefix_id(settings.document_prefix, settings.document_length, "document");
  skip_.resize(static_cast<size_t>(tokenizer.size()));
  std::string unknown;
  for (const std::string& word : settings.skiplist_words) {
    const int32_t id = tokenizer.id_of(word);
    if (id >= 0)
      skip_[static_cast<size_t>(id)] = true;
    else
      unknown.append(" ").append(excerpt(word, 40));
  }
  if (!unknown.empty())
    warnings_.push_back("skiplist words that the vocabulary lacks are left out:" + unknown);
}

bool TextEncoder::append(TokenBatch& batch, std::string_view text, int32_t prefix_id,
                         int64_t length, uint32_t row, uint32_t column) const {
  std::vector<int32_t>& ids = batch.token_ids;
  ids.push_back(tokenizer_.cls());
  if (prefix_id >= 0) ids.push_back(prefix_id);
  const auto pieces = static_cast<int64_t>(ids.size());
  const bool cut = tokenizer_.encode(strip(text), length - (prefix_id >= 0 ? 3 : 2), ids);
  batch.unknown_tokens += std::count(ids.begin() + pieces, ids.end(), tokenizer_.unk());
  ids.push_back(tokenizer_.sep());
  batch.random_rows.push_back(row);
  batch.random_columns.push_back(column);
  return cut;
}

// Fills what follows from the ids of the last sequence.
void TextEncoder::close(TokenBatch& batch, int64_t keys, bool query) const {
  MAXIM_CHECK(batch.tokens() <= std::numeric_limits<int32_t>::max(), "{} tokens in a batch",
              batch.tokens());
  const int32_t begin = batch.offsets.back(), end = static_cast<int32_t>(batch.tokens());
  const int32_t sequence = static_cast<int32_t>(batch.sequences());
  for (int32_t row = begin; row < end; ++row) {
    batch.positions.push_back(row - begin);
    batch.sequence_of.push_back(sequence);
    if (query || !skip_[static_cast<size_t>(batch.token_ids[static_cast<size_t>(row)])])
      batch.scored_rows.push_back(row);
  }
  batch.offsets.push_back(end);
  batch.key_counts.push_back(static_cast<int32_t>(keys));
  batch.scored_offsets.push_back(static_cast<int32_t>(batch.scored_rows.size()));
  batch.longest = std::max<int64_t>(batch.longest, end - begin);
}

void TextEncoder::append_query(TokenBatch& batch, std::string_view text, uint32_t row,
                               uint32_t column) const {
  MAXIM_CHECK(batch.documents == 0, "a query after {} documents", batch.documents);
  const int64_t begin = batch.tokens();
  batch.truncated_queries +=
      append(batch, text, query_prefix_id_, settings_.query_length, row, column);
  int64_t keys = batch.tokens() - begin;
  if (settings_.do_query_expansion) {
    batch.token_ids.resize(static_cast<size_t>(begin + settings_.query_length), tokenizer_.mask());
    if (settings_.attend_to_expansion_tokens) keys = settings_.query_length;
  }
  close(batch, keys, true);
  ++batch.queries;
}

void TextEncoder::append_document(TokenBatch& batch, std::string_view text, uint32_t row,
                                  uint32_t column) const {
  const int64_t begin = batch.tokens();
  batch.truncated_documents +=
      append(batch, text, document_prefix_id_, settings_.document_length, row, column);
  close(batch, batch.tokens() - begin, false);
  ++batch.documents;
}

}  // namespace maxim

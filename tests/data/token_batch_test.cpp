#include "data/token_batch.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tests/catch.h"
#include "tests/data/files.h"

using maxim::SafetensorsFile;
using maxim::TextEncoder;
using maxim::TextSettings;
using maxim::TokenBatch;
using maxim::WordPiece;
using Ids = std::vector<int32_t>;

namespace {

const std::string kGolden = "tests/golden/";

const WordPiece& tokenizer() {
  static const WordPiece loaded = WordPiece::load(kGolden + "tiny_bert");
  return loaded;
}

TextSettings golden_settings(const nlohmann::ordered_json& golden) {
  TextSettings settings;
  settings.query_length = golden["query_length"];
  settings.document_length = golden["document_length"];
  settings.skiplist_words = golden["skiplist_words"].get<std::vector<std::string>>();
  return settings;
}

// A padded [rows, columns] tensor of integers.
struct Padded {
  int64_t rows, columns;
  std::vector<int64_t> values;
  Padded(const SafetensorsFile& file, const std::string& name) {
    const auto& entry = file.at(name);
    rows = entry.shape.at(0);
    columns = entry.shape.at(1);
    for (int64_t i = 0; i < rows * columns; ++i) {
      int64_t value = static_cast<int64_t>(entry.data[i]);
      if (entry.dtype == "I64") std::memcpy(&value, entry.data + 8 * i, 8);
      values.push_back(value);
    }
  }
  int64_t at(int64_t row, int64_t column) const { return values[row * columns + column]; }
};

// Demands that `batch`, sequence by sequence, is the padded golden batch without its padding.
// Sequences without padding are `columns` long when the padding is scored (query expansion).
void check_against(const TokenBatch& batch, const SafetensorsFile& file, const std::string& part,
                   bool expansion) {
  const Padded ids(file, part + ".input_ids"), attention(file, part + ".attention_mask"),
      scored(file, part + ".score_mask");
  REQUIRE(batch.sequences() == ids.rows);
  Ids want_ids, want_scored, want_keys, want_offsets{0}, want_scored_offsets{0};
  for (int64_t s = 0; s < ids.rows; ++s) {
    int32_t keys = 0;
    for (int64_t t = 0; t < ids.columns; ++t) {
      keys += static_cast<int32_t>(attention.at(s, t));
      if (attention.at(s, t) == 0 && !expansion) continue;
      if (scored.at(s, t)) want_scored.push_back(static_cast<int32_t>(want_ids.size()));
      want_ids.push_back(static_cast<int32_t>(ids.at(s, t)));
    }
    want_keys.push_back(keys);
    want_offsets.push_back(static_cast<int32_t>(want_ids.size()));
    want_scored_offsets.push_back(static_cast<int32_t>(want_scored.size()));
  }
  CHECK(batch.token_ids == want_ids);
  CHECK(batch.offsets == want_offsets);
  CHECK(batch.key_counts == want_keys);
  CHECK(batch.scored_rows == want_scored);
  CHECK(batch.scored_offsets == want_scored_offsets);
}

// What must hold in every batch.
void check_consistent(const TokenBatch& batch) {
  REQUIRE(static_cast<int64_t>(batch.offsets.size()) == batch.sequences() + 1);
  REQUIRE(batch.scored_offsets.size() == batch.offsets.size());
  REQUIRE(batch.queries + batch.documents == batch.sequences());
  REQUIRE(static_cast<int64_t>(batch.random_rows.size()) == batch.sequences());
  REQUIRE(static_cast<int64_t>(batch.random_columns.size()) == batch.sequences());
  REQUIRE(batch.positions.size() == batch.token_ids.size());
  REQUIRE(batch.sequence_of.size() == batch.token_ids.size());
  REQUIRE(batch.offsets.back() == batch.tokens());
  REQUIRE(batch.scored_offsets.back() == static_cast<int64_t>(batch.scored_rows.size()));
  REQUIRE(std::is_sorted(batch.scored_rows.begin(), batch.scored_rows.end()));
  int64_t longest = 0;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int32_t begin = batch.offsets[s], end = batch.offsets[s + 1];
    longest = std::max<int64_t>(longest, end - begin);
    for (int32_t t = begin; t < end; ++t)
      REQUIRE((batch.positions[t] == t - begin && batch.sequence_of[t] == s));
    for (int32_t i = batch.scored_offsets[s]; i < batch.scored_offsets[s + 1]; ++i)
      REQUIRE((begin <= batch.scored_rows[i] && batch.scored_rows[i] < end));
    REQUIRE((0 < batch.key_counts[s] && batch.key_counts[s] <= end - begin));
  }
  REQUIRE(batch.longest == longest);
}

}  // namespace

TEST_CASE("token_batch: PyLate's ids, keys and scored rows") {
  const auto golden = maxim::read_json(kGolden + "encoder_forward.json");
  const SafetensorsFile file(kGolden + "encoder_forward.safetensors");
  const auto texts = golden["texts"].get<std::vector<std::string>>();
  const TextEncoder encoder(tokenizer(), golden_settings(golden));
  CHECK(encoder.warnings().empty());
  TokenBatch queries, documents, both;
  for (size_t i = 0; i < texts.size(); ++i) {
    encoder.append_query(queries, texts[i], static_cast<uint32_t>(i), 0);
    encoder.append_query(both, texts[i], static_cast<uint32_t>(i), 0);
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    encoder.append_document(documents, texts[i], static_cast<uint32_t>(i), 1);
    encoder.append_document(both, texts[i], static_cast<uint32_t>(i), 1);
  }
  check_against(queries, file, "q", true);
  check_against(documents, file, "d", false);
  check_against(documents, file, "d_padmax", false);
  for (const TokenBatch* batch : {&queries, &documents, &both}) check_consistent(*batch);
  int64_t longer = 0;  // texts that take more than a query's 16 tokens as documents
  for (const int32_t keys : documents.key_counts) longer += keys > 16;
  CHECK(queries.truncated_queries == longer);
  CHECK(documents.truncated_documents == 1);  // text 3, the repeated sentence
  CHECK(queries.longest == 16);
  CHECK(documents.longest == 48);

  Ids joined = queries.token_ids;
  joined.insert(joined.end(), documents.token_ids.begin(), documents.token_ids.end());
  CHECK(both.token_ids == joined);
  CHECK(both.queries == 6);
  CHECK(both.documents == 6);
  CHECK(both.random_rows == std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  CHECK(both.random_columns == std::vector<uint32_t>{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1});
  CHECK(both.unknown_tokens == queries.unknown_tokens + documents.unknown_tokens);

  both.clear();
  CHECK(both.tokens() == 0);
  check_consistent(both);
  for (size_t i = 0; i < texts.size(); ++i)
    encoder.append_query(both, texts[i], static_cast<uint32_t>(i), 0);
  CHECK(both.token_ids == queries.token_ids);
  CHECK(both.scored_rows == queries.scored_rows);
  CHECK(both.unknown_tokens == queries.unknown_tokens);
}

TEST_CASE("token_batch: a case on paper") {
  const WordPiece& t = tokenizer();
  const int32_t cls = 12, sep = 13, mask = 14, q = 1394, d = 1395, the = t.id_of("the"),
                comma = t.id_of(",");
  TextSettings settings;
  settings.query_length = 6;
  settings.document_length = 5;
  settings.skiplist_words = {",", "nowordlikethis", "the"};
  const auto encode = [&](std::string_view query, std::string_view document) {
    const TextEncoder encoder(t, settings);
    TokenBatch batch;
    encoder.append_query(batch, query, 7, 0);
    encoder.append_document(batch, document, 7, 2);
    check_consistent(batch);
    return batch;
  };
  TokenBatch b = encode(" the,\n", "\xC2\xA0the,");
  CHECK(b.token_ids == Ids{cls, q, the, comma, sep, mask, cls, d, the, comma, sep});
  CHECK(b.key_counts == Ids{5, 5});
  CHECK(b.scored_rows == Ids{0, 1, 2, 3, 4, 5, 6, 7, 10});  // the skiplist is for documents only
  CHECK(b.random_rows == std::vector<uint32_t>{7, 7});
  CHECK(b.random_columns == std::vector<uint32_t>{0, 2});
  CHECK(b.truncated_queries + b.truncated_documents == 0);

  // One piece too many, in each: cut before [SEP].
  b = encode("the the the the", "the the the");
  CHECK(b.token_ids == Ids{cls, q, the, the, the, sep, cls, d, the, the, sep});
  CHECK(b.key_counts == Ids{6, 5});
  CHECK(b.truncated_queries == 1);
  CHECK(b.truncated_documents == 1);

  b = encode("", " \xE3\x80\x80 ");
  CHECK(b.token_ids == Ids{cls, q, sep, mask, mask, mask, cls, d, sep});
  CHECK(b.unknown_tokens == 0);

  // With its blank stripped, "[Q]" is text; in front of more text it is the prefix token.
  b = encode("[Q] ", "the [Q] the");
  CHECK(b.token_ids ==
        Ids{cls, q, t.id_of("["), t.id_of("q"), t.id_of("]"), sep, cls, d, the, q, sep});

  b = encode("☃ the", "☃ ☃ the");  // [UNK], which is not in the skiplist
  CHECK(b.unknown_tokens == 3);
  CHECK(b.token_ids == Ids{cls, q, 11, the, sep, mask, cls, d, 11, 11, sep});
  CHECK(b.scored_rows.size() == 6 + 5);

  settings.attend_to_expansion_tokens = true;
  CHECK(encode("the", "the").key_counts == Ids{6, 4});
  settings.do_query_expansion = false;
  b = encode("the", "the");
  CHECK(b.token_ids == Ids{cls, q, the, sep, cls, d, the, sep});
  CHECK(b.key_counts == Ids{4, 4});
  CHECK(b.scored_rows == Ids{0, 1, 2, 3, 4, 5, 7});

  settings.query_prefix = settings.document_prefix = "";
  b = encode("the the the the the", "the the the the");
  CHECK(b.token_ids == Ids{cls, the, the, the, the, sep, cls, the, the, the, sep});
  settings.query_length = settings.document_length = 2;
  b = encode("the", "");
  CHECK(b.token_ids == Ids{cls, sep, cls, sep});
  CHECK(b.truncated_queries == 1);
  CHECK(b.truncated_documents == 0);
}

TEST_CASE("token_batch: settings that cannot work, and words the vocabulary lacks") {
  TextSettings settings;
  settings.skiplist_words = {"!", "nowordlikethis", ",", "☃"};
  const TextEncoder encoder(tokenizer(), settings);
  CHECK(encoder.warnings() ==
        std::vector<std::string>{
            "skiplist words that the vocabulary lacks are left out: nowordlikethis ☃"});
  settings.query_length = 2;
  CHECK(maxim_tests::input_error([&] { TextEncoder(tokenizer(), settings); }) ==
        "query_length 2 has no room for [CLS], the prefix and [SEP]: at least 3");
  settings.query_length = 3;
  settings.document_length = 1;
  settings.document_prefix = "";
  CHECK(maxim_tests::input_error([&] { TextEncoder(tokenizer(), settings); }) ==
        "document_length 1 has no room for [CLS] and [SEP]: at least 2");
  settings.document_length = 2;
  settings.query_prefix = "[X] ";
  CHECK_THROWS_AS(TextEncoder(tokenizer(), settings), maxim::Error);
  TokenBatch batch;
  encoder.append_document(batch, "the", 0, 1);
  CHECK_THROWS_AS(encoder.append_query(batch, "the", 0, 0), maxim::Error);
}

TEST_CASE("token_batch: a huge text is not tokenized beyond its length") {
  std::string text;
  while (text.size() < 20'000'000) text += "the strong army of 1993, ";
  const TextEncoder encoder(tokenizer(), {});
  TokenBatch batch;
  const auto start = std::chrono::steady_clock::now();
  encoder.append_document(batch, text, 0, 1);
  // Whole, it takes about 10 s at the 2 MB/s of a common tokenizer.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK(batch.tokens() == 180);
  CHECK(batch.truncated_documents == 1);
}

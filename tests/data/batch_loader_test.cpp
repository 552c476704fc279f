#include "data/batch_loader.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using Catch::Matchers::Contains;
using maxim::BatchLoader;
using maxim::LoadedMicroBatch;
using maxim::LoadedStep;
using maxim::Sampler;
using maxim::SamplerSettings;
using maxim::TextEncoder;
using maxim::TokenBatch;
using maxim::TrainingData;
using maxim::WordPiece;
using maxim_tests::TemporaryDirectory;

namespace {

const WordPiece& tokenizer() {
  static const WordPiece loaded = WordPiece::load("tests/golden/tiny_bert");
  return loaded;
}

// Rows of ragged texts: row i has i % 7 words in the query, i % 40 in the positive and so on.
std::string rows_of(int64_t rows) {
  const auto words = [](int64_t count, int64_t i) {
    std::string text;
    for (int64_t w = 0; w < count; ++w) text += (w + i) % 3 == 0 ? "strong " : "army, ";
    return text;
  };
  std::string content;
  for (int64_t i = 0; i < rows; ++i)
    content +=
        fmt::format("{{\"query\":\"{}\",\"positive\":\"{}\",\"negatives\":[\"{}\",\"{}\"]}}\n",
                    words(i % 7, i), words(i % 40, i), words(i % 3, i), words(200 - i, i));
  return content;
}

bool same(const TokenBatch& a, const TokenBatch& b) {
  return a.token_ids == b.token_ids && a.positions == b.positions &&
         a.sequence_of == b.sequence_of && a.offsets == b.offsets && a.key_counts == b.key_counts &&
         a.random_rows == b.random_rows && a.random_columns == b.random_columns &&
         a.scored_rows == b.scored_rows && a.scored_offsets == b.scored_offsets &&
         a.longest == b.longest && a.queries == b.queries && a.documents == b.documents &&
         a.truncated_queries == b.truncated_queries &&
         a.truncated_documents == b.truncated_documents && a.unknown_tokens == b.unknown_tokens;
}

// The batch by its definition, from the step's global rows.
TokenBatch expected(const TrainingData& data, const TextEncoder& encoder,
                    const std::vector<int64_t>& step_rows, int64_t begin, int64_t end) {
  TokenBatch batch;
  std::vector<std::string> texts;
  for (int64_t row = begin; row < end; ++row) {
    data.row(step_rows[row], texts);
    encoder.append_query(batch, texts[0], static_cast<uint32_t>(row), 0);
  }
  for (int64_t row = begin; row < end; ++row) {
    data.row(step_rows[row], texts);
    for (uint32_t column = 1; column < 4; ++column)
      encoder.append_document(batch, texts[column], static_cast<uint32_t>(row), column);
  }
  return batch;
}

}  // namespace

TEST_CASE("batch_loader: the sampler's steps in order, for every rank") {
  const TemporaryDirectory directory;
  const TrainingData data({directory.write("rows.jsonl", rows_of(29))}, {});
  const TextEncoder encoder(tokenizer(), {});
  const int world = GENERATE(1, 2, 3, 5);
  const int64_t accumulation = GENERATE(1, 3);
  for (int rank = 0; rank < world; ++rank) {
    const SamplerSettings settings = {.rows = 29,
                                      .per_device_batch = 4,
                                      .accumulation = accumulation,
                                      .rank = rank,
                                      .world_size = world};
    Sampler sampler(settings);
    const int64_t first = rank % 2 == 0 ? 0 : 1, last = 2 * sampler.steps_per_epoch() + 2;
    BatchLoader loader(data, encoder, Sampler(settings), first, last);
    for (int64_t number = first; number < last; ++number) {
      const LoadedStep& step = loader.next();
      const std::vector<int64_t> rows = sampler.global_rows(number);
      REQUIRE(step.step == number);
      REQUIRE(step.global_rows == static_cast<int64_t>(rows.size()));
      REQUIRE(step.wait_seconds >= 0);
      REQUIRE(step.micro_batches.size() == sampler.micro_batches(number).size());
      int64_t before = 0;
      for (const LoadedMicroBatch& batch : step.micro_batches) {
        const int64_t all = batch.rows.global_rows;
        const int64_t begin = before + all * rank / world, end = before + all * (rank + 1) / world;
        REQUIRE(batch.rows.rows == std::vector<int64_t>(rows.begin() + begin, rows.begin() + end));
        INFO("rank " << rank << " of " << world << ", step " << number);
        REQUIRE(same(batch.tokens, expected(data, encoder, rows, begin, end)));
        before += all;
      }
      REQUIRE(before == step.global_rows);
    }
    CHECK_THROWS_AS(loader.next(), maxim::Error);
  }
}

TEST_CASE("batch_loader: nothing grows after the first steps") {
  const TemporaryDirectory directory;
  const TrainingData data({directory.write("rows.jsonl", rows_of(29))}, {});
  const TextEncoder encoder(tokenizer(), {});
  // Two steps an epoch, of 5 and 3 micro-batches, the last with one row: after 6 steps each of the
  // three buffers has had both, and 15 micro-batches have the room that they will ever need.
  Sampler sampler({.rows = 29, .per_device_batch = 4, .accumulation = 5});
  REQUIRE(sampler.steps_per_epoch() == 2);
  std::set<const void*> ids, scored, offsets, rows;
  BatchLoader loader(data, encoder, sampler, 0, 60);
  for (int64_t number = 0; number < 60; ++number) {
    const LoadedStep& step = loader.next();
    if (number < 6) continue;
    for (const LoadedMicroBatch& batch : step.micro_batches) {
      ids.insert(batch.tokens.token_ids.data());
      scored.insert(batch.tokens.scored_rows.data());
      offsets.insert(batch.tokens.offsets.data());
      rows.insert(batch.tokens.random_rows.data());
    }
  }
  CHECK(ids.size() == 15);
  CHECK(scored.size() == 15);
  CHECK(offsets.size() == 15);
  CHECK(rows.size() == 15);
}

TEST_CASE("batch_loader: stops at any moment") {
  const TemporaryDirectory directory;
  const TrainingData data({directory.write("rows.jsonl", rows_of(29))}, {});
  const TextEncoder encoder(tokenizer(), {});
  int64_t steps = 0;
  for (int taken = 0; taken < 40; ++taken) {
    BatchLoader loader(data, encoder, Sampler({.rows = 29, .per_device_batch = 8}), 0, 1'000'000);
    for (int step = 0; step < taken % 5; ++step) steps += loader.next().step == step;
    // In every tenth round the thread has both steps ready and waits.
    if (taken % 10 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  CHECK(steps == 80);
  BatchLoader none(data, encoder, Sampler({.rows = 29}), 3, 3);
  CHECK_THROWS_AS(none.next(), maxim::Error);
}

TEST_CASE("batch_loader: what the thread throws arrives, after the steps before it") {
  const TemporaryDirectory directory;
  const std::string content = rows_of(29), path = directory.write("rows.jsonl", content);
  const TrainingData data({path}, {});
  // Row 20 is damaged behind the loader's back: the file stays as long as it was.
  size_t at = 0;
  for (int row = 0; row < 20; ++row) at = content.find('\n', at) + 1;
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at) << "[";
  const TextEncoder encoder(tokenizer(), {});
  BatchLoader loader(data, encoder, Sampler({.rows = 29, .per_device_batch = 8, .shuffle = false}),
                     0, 4);
  CHECK(loader.next().step == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // step 1 is ready, step 2 has failed
  CHECK(loader.next().step == 1);
  for (int again = 0; again < 2; ++again)
    CHECK_THROWS_WITH(loader.next(), Contains("rows.jsonl: the file was changed while"));
}

#include "trainer/encode_texts.h"

#include <algorithm>
#include <numeric>

#include "runtime/error.h"

namespace maxim {
namespace {

void append(const ModelSession& session, TokenBatch& batch, const std::string& text,
            bool is_query) {
  // Row and column number feed dropout, of which there is none here.
  if (is_query) {
    session.text_encoder().append_query(batch, text, 0, 0);
  } else {
    session.text_encoder().append_document(batch, text, 0, 0);
  }
}

// Cuts plan.order into batches, and measures the largest.
void cut_batches(EncodingPlan& plan, const std::vector<int64_t>& lengths,
                 const EncodeSettings& settings) {
  plan.batch_offsets = {0};
  BatchLimits batch;
  const auto close = [&](int64_t end) {
    plan.batch_offsets.push_back(end);
    plan.limits.tokens = std::max(plan.limits.tokens, batch.tokens);
    plan.limits.sequences = std::max(plan.limits.sequences, batch.sequences);
    plan.limits.scored = std::max(plan.limits.scored, batch.scored);
    batch = {};
  };
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const int64_t text = plan.order[i];
    const bool full = batch.sequences == settings.batch_size ||
                      batch.tokens + lengths[text] > settings.batch_tokens;
    if (full && batch.sequences > 0) close(i);
    batch.tokens += lengths[text];
    batch.sequences += 1;
    batch.scored += plan.scored_offsets[text + 1] - plan.scored_offsets[text];
  }
  if (batch.sequences > 0) close(plan.order.size());
  if (!plan.order.empty()) plan.limits.longest = lengths[plan.order.front()];
}

}  // namespace

EncodingPlan plan_encoding(const ModelSession& session, const std::vector<std::string>& texts,
                           bool is_query, const EncodeSettings& settings) {
  MAXIM_CHECK(settings.batch_size > 0 && settings.batch_tokens > 0, "{} texts, {} tokens",
              settings.batch_size, settings.batch_tokens);
  EncodingPlan plan;
  plan.scored_offsets = {0};
  std::vector<int64_t> lengths;
  TokenBatch one;
  for (const std::string& text : texts) {
    one.clear();
    append(session, one, text, is_query);
    lengths.push_back(one.tokens());
    for (int32_t row : one.scored_rows) plan.token_ids.push_back(one.token_ids[row]);
    plan.scored_offsets.push_back(static_cast<int64_t>(plan.token_ids.size()));
    plan.truncated += one.truncated_queries + one.truncated_documents;
  }
  plan.order.resize(texts.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  std::stable_sort(plan.order.begin(), plan.order.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  cut_batches(plan, lengths, settings);
  return plan;
}

int64_t scored_tokens(const EncodingPlan& plan, int64_t batch) {
  int64_t tokens = 0;
  for (int64_t i = plan.batch_offsets[batch]; i < plan.batch_offsets[batch + 1]; ++i)
    tokens += plan.scored_offsets[plan.order[i] + 1] - plan.scored_offsets[plan.order[i]];
  return tokens;
}

void encode_batches(ModelSession& session, const Communicator& communicator,
                    const std::vector<std::string>& texts, bool is_query, const EncodingPlan& plan,
                    int64_t extra_arena_bytes, const UseBatch& use) {
  if (communicator.rank() >= plan.batches()) return;
  Arena arena(session.device(),
              session.upload_bytes(plan.limits) +
                  session.colbert().arena_bytes(plan.limits, false) + extra_arena_bytes,
              "encoding arena");
  TokenBatch batch;
  std::vector<int64_t> numbers;
  for (int64_t b = communicator.rank(); b < plan.batches(); b += communicator.size()) {
    arena.reset();
    batch.clear();
    numbers.assign(plan.order.begin() + plan.batch_offsets[b],
                   plan.order.begin() + plan.batch_offsets[b + 1]);
    int64_t longest = 0;
    for (int64_t text : numbers) {
      append(session, batch, texts[text], is_query);
      longest = std::max(longest, plan.scored_offsets[text + 1] - plan.scored_offsets[text]);
    }
    const Sequences sequences = session.upload(batch, arena);
    const Tensor vectors = session.colbert().forward(sequences, StepDropout{}, false, arena);
    use(numbers, {.vectors = vectors, .offsets = sequences.scored_offsets, .longest = longest},
        arena);
  }
}

EncodedTexts encode_texts(ModelSession& session, Communicator& communicator,
                          const std::vector<std::string>& texts, bool is_query,
                          const EncodeSettings& settings) {
  EncodingPlan plan = plan_encoding(session, texts, is_query, settings);
  Device& device = session.device();
  const int64_t dimension = session.config().embedding_size;
  std::vector<int64_t> parts(communicator.size(), 0);
  for (int64_t b = 0; b < plan.batches(); ++b)
    parts[b % communicator.size()] += scored_tokens(plan, b);

  const int64_t all_rows = plan.scored_offsets.back();
  const int64_t first =
      std::accumulate(parts.begin(), parts.begin() + communicator.rank(), int64_t{0});
  const DeviceTensor memory(device, DType::f32, all_rows * dimension, "vectors of all ranks");
  const Tensor all = memory.view().reshape(all_rows, dimension);
  const Tensor mine = all.slice(first, first + parts[communicator.rank()]);
  int64_t filled = 0;
  encode_batches(session, communicator, texts, is_query, plan, 0,
                 [&](const std::vector<int64_t>&, const TokenVectors& vectors, Arena&) {
                   const int64_t rows = vectors.vectors.rows();
                   session.ops().convert(mine.slice(filled, filled + rows), vectors.vectors);
                   filled += rows;
                 });
  communicator.all_gather(all, mine, parts);

  // `all` has the ranks' batches one after the other; the result has the order of the texts.
  EncodedTexts result;
  result.dimension = dimension;
  result.vectors.resize(all_rows * dimension);
  int64_t row = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    for (int64_t b = rank; b < plan.batches(); b += communicator.size()) {
      for (int64_t i = plan.batch_offsets[b]; i < plan.batch_offsets[b + 1]; ++i) {
        const int64_t begin = plan.scored_offsets[plan.order[i]];
        const int64_t rows = plan.scored_offsets[plan.order[i] + 1] - begin;
        device.copy_out(result.vectors.data() + begin * dimension, all.slice(row, row + rows));
        row += rows;
      }
    }
  }
  result.offsets = std::move(plan.scored_offsets);
  result.token_ids = std::move(plan.token_ids);
  return result;
}

}  // namespace maxim

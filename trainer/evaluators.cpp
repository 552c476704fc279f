#include "trainer/evaluators.h"

#include <algorithm>
#include <cmath>

#include "runtime/error.h"
#include "trainer/retrieval.h"

namespace maxim {
namespace {

// Rows of which positive and first negative are scored in one pass: a function of the settings
// alone, so that rows share a batch with the same others at any world size.
int64_t rows_per_batch(const ColbertConfig& config, const EncodeSettings& settings) {
  const int64_t row_tokens = config.query_length + 2 * config.document_length;
  return std::clamp<int64_t>(settings.batch_tokens / row_tokens, 1, settings.batch_size);
}

// Host copy of the scores [rows, 2 * rows] of the batch's queries with its documents.
std::vector<float> score_batch(ModelSession& session, const TokenBatch& batch, Arena& arena) {
  const Sequences sequences = session.upload(batch, arena);
  const Tensor vectors = session.colbert().forward(sequences, StepDropout{}, false, arena);
  const auto part = [&](int64_t begin, int64_t end) {  // token vectors of these sequences
    const std::vector<int32_t>& all = batch.scored_offsets;
    std::vector<int32_t> offsets(all.begin() + begin, all.begin() + end + 1);
    int64_t longest = 0;
    for (int64_t s = begin; s < end; ++s) longest = std::max<int64_t>(longest, all[s + 1] - all[s]);
    for (int32_t& offset : offsets) offset -= all[begin];
    const Tensor device_offsets = arena.take(DType::i32, end - begin + 1, "scored offsets");
    session.device().copy_in(device_offsets, offsets.data());
    return TokenVectors{.vectors = vectors.slice(all[begin], all[end]),
                        .offsets = device_offsets,
                        .longest = longest};
  };
  const Tensor scores = arena.take(DType::f32, batch.queries, batch.documents, "triplet scores");
  session.ops().maxsim_forward(scores, Tensor(), part(0, batch.queries),
                               part(batch.queries, batch.sequences()));
  std::vector<float> host(scores.size());
  session.device().copy_out(host.data(), scores);
  return host;
}

// Rows [begin, end) whose positive wins.
int64_t count_correct(ModelSession& session, const TrainingData& data, int64_t begin, int64_t end,
                      TokenBatch& batch, Arena& arena) {
  const int64_t rows = end - begin;
  std::vector<std::vector<std::string>> texts(rows);
  batch.clear();
  arena.reset();
  for (int64_t i = 0; i < rows; ++i) {
    data.row(begin + i, texts[i]);
    session.text_encoder().append_query(batch, texts[i][0], 0, 0);
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int column : {1, 2}) session.text_encoder().append_document(batch, texts[i][column], 0, 0);
  const std::vector<float> scores = score_batch(session, batch, arena);
  int64_t correct = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const float positive = scores[i * 2 * rows + 2 * i];
    const float negative = scores[i * 2 * rows + 2 * i + 1];
    if (std::isnan(positive) || std::isnan(negative))
      fail("the score of evaluation row {} is not a number: the model's weights are broken",
           begin + i + 1);
    correct += positive > negative;
  }
  return correct;
}

}  // namespace

Metrics evaluate_retrieval(ModelSession& session, Communicator& communicator,
                           const RetrievalSet& set, const EncodeSettings& settings) {
  const std::vector<std::vector<Hit>> hits =
      retrieve(session, communicator, set.queries.texts, set.corpus.texts, kMetricsDepth, settings);
  std::vector<std::vector<int64_t>> ranked(hits.size());
  for (size_t q = 0; q < hits.size(); ++q)
    for (const Hit& hit : hits[q]) ranked[q].push_back(hit.document);
  return retrieval_metrics(ranked, set.relevant);
}

Metrics evaluate_triplets(ModelSession& session, Communicator& communicator,
                          const TrainingData& data, const EncodeSettings& settings) {
  if (data.documents_per_query() < 2)
    fail_input(
        "the accuracy of triplets needs a negative in each row; these have a query and a positive "
        "only");
  const ColbertConfig& config = session.config();
  const int64_t rows = rows_per_batch(config, settings);
  const int64_t tokens = rows * (config.query_length + 2 * config.document_length);
  const BatchLimits limits{.tokens = tokens,
                           .sequences = 3 * rows,
                           .scored = tokens,
                           .longest = std::max(config.query_length, config.document_length)};
  const int64_t scoring_bytes = 4 * (2 * rows * rows + 3 * rows + 2) + 3 * 256;
  Arena arena(
      session.device(),
      session.upload_bytes(limits) + session.colbert().arena_bytes(limits, false) + scoring_bytes,
      "evaluation arena");
  TokenBatch batch;
  int64_t correct = 0;
  for (int64_t begin = communicator.rank() * rows; begin < data.rows();
       begin += communicator.size() * rows)
    correct +=
        count_correct(session, data, begin, std::min(begin + rows, data.rows()), batch, arena);
  const double total = communicator.sum_host({static_cast<double>(correct)})[0];
  return {{"accuracy", total / data.rows()}};
}

}  // namespace maxim

#include "trainer/train_step.h"

#include <cmath>

#include "runtime/fault.h"

namespace maxim {
namespace {

BatchLimits largest_batch(ModelSession& session, const TrainStepSettings& settings) {
  const ColbertConfig& config = session.config();
  const int64_t rows = settings.per_device_batch, documents = settings.loss.documents_per_query;
  BatchLimits limits;
  limits.tokens = rows * (config.query_length + documents * config.document_length);
  limits.sequences = rows * (1 + documents);
  limits.scored = limits.tokens;
  limits.longest = std::max(config.query_length, config.document_length);
  return limits;
}

int64_t step_arena_bytes(ModelSession& session, const ContrastiveLoss& loss,
                         const TrainStepSettings& settings) {
  const BatchLimits limits = largest_batch(session, settings);
  const ColbertConfig& config = session.config();
  const int64_t rows = settings.per_device_batch;
  const int64_t documents = rows * settings.loss.documents_per_query;
  return session.colbert().arena_bytes(limits, true) +
         // gradients of the vectors
         limits.scored * config.embedding_size * size_of(DType::f32) + 256 +
         loss.arena_bytes(rows, rows * config.query_length, documents,
                          documents * config.document_length, config.embedding_size);
}

// Offsets [begin, end] of `offsets`, counted from the first.
void rebase(std::vector<int32_t>& out, const std::vector<int32_t>& offsets, int64_t begin,
            int64_t end) {
  out.clear();
  for (int64_t i = begin; i <= end; ++i) out.push_back(offsets[i] - offsets[begin]);
}

DeviceTensor make_loss_scale(ModelSession& session) {
  if (session.parameters().compute_type() != DType::f16) return {};
  DeviceTensor scale(session.device(), DType::f32, 2, "loss scale");
  const float start[] = {LossScale::kInitial, 0};
  session.device().copy_in(scale.view(), start);
  return scale;
}

std::vector<GradientReducer::Range> whole(const Parameters& parameters) {
  return {{0, parameters.values().size()}};
}

}  // namespace

TrainStep::TrainStep(ModelSession& session, Communicator& communicator,
                     const TrainStepSettings& settings)
    : session_(session),
      communicator_(communicator),
      settings_(settings),
      loss_scale_(make_loss_scale(session)),
      reducer_(session.ops(), communicator, session.parameters().gradients(), settings.reducer),
      optimizer_(session.ops(), session.parameters(), settings.optimizer,
                 sharded() ? reducer_.own() : whole(session.parameters()), loss_scale_.view()),
      loss_(session.ops(), communicator, settings.loss),
      batch_slots_{
          {session.device(), session.upload_bytes(largest_batch(session, settings)), "batches"},
          {session.device(), session.upload_bytes(largest_batch(session, settings)), "batches"}},
      arena_(session.device(), step_arena_bytes(session, loss_, settings), "step memory"),
      losses_(session.device(), DType::f32, settings.metrics_capacity, "losses"),
      square_sum_(session.device(), DType::f32, 1, "gradient norm") {
  session.device().zero(losses_.view());
  loss_.set_loss_scale(loss_scale_.view());
}

void TrainStep::run(const LoadedStep& batches, int64_t step, double factor) {
  MAXIM_CHECK(steps_since_read_ < settings_.metrics_capacity, "{} steps without read_metrics()",
              steps_since_read_);
  settings_.dropout.step = static_cast<uint32_t>(step);
  optimizer_.zero_gradients();
  if (takes_fault(Fault::nan)) {  // the passes add to it
    const float nan = std::nanf("");
    session_.device().copy_in(session_.parameters().gradients().slice(0, 1), &nan);
  }
  const Tensor loss = losses_.view().slice(steps_since_read_, steps_since_read_ + 1);
  const float scale =
      settings_.size_average ? 1.0f / static_cast<float>(batches.global_rows) : 1.0f;
  for (const LoadedMicroBatch& batch : batches.micro_batches)
    run_micro_batch(batch, scale, loss, &batch == &batches.micro_batches.back());
  reducer_.finish();
  optimizer_.step(factor, square_sum_.view(), reducer_.square_sums());
  if (sharded()) {
    const Parameters& parameters = session_.parameters();
    reducer_.share(parameters.values());
    if (!parameters.copy().absent()) session_.ops().convert(parameters.copy(), parameters.values());
  }
  ++steps_since_read_;
}

void TrainStep::run_micro_batch(const LoadedMicroBatch& batch, float scale, const Tensor& loss,
                                bool last) {
  const TokenBatch& tokens = batch.tokens;
  const int slot = static_cast<int>(micro_batches_++ % 2);
  batch_slots_[slot].reset();
  session_.device().begin_ahead(slot);
  const Sequences sequences = session_.upload(tokens, batch_slots_[slot]);
  session_.device().end_ahead();
  arena_.reset();
  const Tensor vectors = session_.colbert().encode(sequences, settings_.dropout, arena_);
  const Tensor d_vectors =
      arena_.take(DType::f32, vectors.rows(), vectors.cols(), "vector gradients");
  const int64_t query_rows = tokens.scored_offsets[tokens.queries];
  {
    Arena::Mark scratch(arena_);
    loss_batch_.queries = vectors.slice(0, query_rows);
    loss_batch_.documents = vectors.slice(query_rows, vectors.rows());
    rebase(loss_batch_.query_offsets, tokens.scored_offsets, 0, tokens.queries);
    rebase(loss_batch_.document_offsets, tokens.scored_offsets, tokens.queries, tokens.sequences());
    session_.colbert().project(query_rows, vectors.rows());
    loss_.gather(loss_batch_, arena_);
    session_.colbert().project(0, query_rows);
    loss_.run(loss_batch_, scale, loss, d_vectors.slice(0, query_rows),
              d_vectors.slice(query_rows, vectors.rows()), arena_);
  }
  session_.colbert().backward(
      d_vectors, arena_, last ? [this](int64_t begin) { reducer_.ready(begin); } : FinalFrom());
  session_.device().release(slot);
}

StepMetrics TrainStep::read_metrics() {
  StepMetrics metrics;
  std::vector<float> own(settings_.metrics_capacity);
  session_.device().copy_out(own.data(), losses_.view());
  session_.device().zero(losses_.view());
  metrics.losses = communicator_.sum_host({own.begin(), own.begin() + steps_since_read_});
  float square_sum = 0;
  session_.device().copy_out(&square_sum, square_sum_.view());
  metrics.gradient_norm = std::sqrt(static_cast<double>(square_sum));
  metrics.skipped_steps = optimizer_.skipped_steps();
  steps_since_read_ = 0;
  return metrics;
}

std::vector<std::pair<std::string, int64_t>> TrainStep::memory_plan() const {
  const int64_t parameters = session_.parameters().values().bytes();
  std::vector<std::pair<std::string, int64_t>> plan = {
      {"parameters", parameters + session_.parameters().copy().bytes()},
      {"gradients", parameters + reducer_.device_bytes()},
      {"optimizer state", optimizer_.state_bytes()},
      {"batches (two, largest)", 2 * batch_slots_[0].capacity()},
      {"step memory (largest batch)", arena_.capacity()}};
  int64_t rest = session_.device().allocated_bytes();
  for (const auto& [purpose, bytes] : plan) rest -= bytes;
  plan.emplace_back("workspace and counters", rest);
  return plan;
}

}  // namespace maxim

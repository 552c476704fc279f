#include "trainer/train_step.h"

#include "comm/solo_communicator.h"
#include "tests/catch.h"
#include "tests/trainer/tiny_model.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

// `rows` rows of query, positive and negative: texts `first`, first + 1, ….
LoadedMicroBatch batch_of(const ModelSession& session, const std::vector<std::string>& texts,
                          int first, int rows) {
  LoadedMicroBatch batch;
  for (int i = 0; i < rows; ++i)
    session.text_encoder().append_query(batch.tokens, texts[first + i], i, 0);
  for (int i = 0; i < rows; ++i)
    for (const int column : {1, 2})
      session.text_encoder().append_document(batch.tokens, texts[first + rows * column + i], i,
                                             column);
  return batch;
}

}  // namespace

TEST_CASE("a training step allocates nothing after the first and never waits for the device",
          "[train_step]") {
  ModelSession session(tiny_options(), true);
  SoloCommunicator solo;
  TrainStepSettings settings;
  settings.loss.documents_per_query = 2;
  settings.dropout = {.hidden = 0.1f, .attention = 0.1f, .seed = 7};
  settings.per_device_batch = 4;
  TrainStep train_step(session, solo, settings);
  const std::vector<std::string> texts = ragged_texts(60);
  // A short batch first: what comes later is larger in every way.
  const LoadedMicroBatch batches[] = {
      batch_of(session, {"war", "", "peace"}, 0, 1), batch_of(session, texts, 3, 4),
      batch_of(session, texts, 40, 2), batch_of(session, texts, 20, 4)};
  REQUIRE(batches[1].tokens.tokens() > 10 * batches[0].tokens.tokens());
  int64_t after_first = 0, waits = 0;
  for (int step = 0; step < 8; ++step) {
    const LoadedMicroBatch& batch = batches[step % 4];
    train_step.run(
        {.step = step, .micro_batches = {&batch, 1}, .global_rows = batch.tokens.queries}, step,
        1.0);
    if (step > 0) continue;
    after_first = session.device().allocations();
    waits = session.device().synchronizations();
  }
  CHECK(session.device().allocations() == after_first);
  CHECK(session.device().synchronizations() == waits);
  for (const double loss : train_step.read_metrics().losses) CHECK(loss > 0);
}

// Batches are copied to the device while it computes. The emulator runs copies and kernels in any
// order that their events allow.
TEST_CASE("steps given to the device ahead of time are those that are waited for", "[train_step]") {
  const std::vector<std::string> texts = ragged_texts(60);
  const auto losses = [&](bool wait) {
    ModelSession session(tiny_options(), true);
    SoloCommunicator solo;
    TrainStepSettings settings;
    settings.loss.documents_per_query = 2;
    settings.per_device_batch = 4;
    TrainStep train_step(session, solo, settings);
    std::vector<double> all;
    for (int step = 0; step < 8; ++step) {
      // Two micro-batches in odd steps, and host memory that is gone when the step is given.
      const std::vector<LoadedMicroBatch> batches(1 + step % 2,
                                                  batch_of(session, texts, step * 6, 4));
      train_step.run({.step = step, .micro_batches = batches, .global_rows = 8}, step, 1.0);
      if (!wait && step < 7) continue;
      for (const double loss : train_step.read_metrics().losses) all.push_back(loss);
    }
    return all;
  };
  const std::vector<double> expected = losses(true);
  REQUIRE(expected.size() == 8);
  for (int repeat = 0; repeat < 4; ++repeat) CHECK(losses(false) == expected);
}

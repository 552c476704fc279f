// Gradients are summed beside the backward pass, and batches are copied beside the step before:
// what the host gives to the streams of training steps, in which order, and what waits for what.
#include <algorithm>
#include <string>
#include <vector>

#include "emulated/emulator.h"
#include "tests/catch.h"
#include "tests/mpi/world.h"
#include "tests/trainer/tiny_model.h"
#include "trainer/train_step.h"

namespace maxim_tests {
namespace {

using maxim_emulated::TraceRecord;

// Steps of a two-layer model with buckets of one unit, by order of issue.
std::vector<TraceRecord> trace_of_steps(int steps) {
  maxim::ModelOptions options = tiny_options();
  options.device = "cuda";
  options.local_rank = world().local_rank;
  maxim::ModelSession session(options, true);
  session.connect(*world().communicator, 60);
  maxim::TrainStepSettings settings;
  settings.reducer = {.first_bucket_bytes = 1, .bucket_bytes = 1};
  maxim::TrainStep train_step(session, session.communicator(), settings);
  maxim::LoadedMicroBatch batch;
  const std::vector<std::string> texts = ragged_texts(8);
  for (int i = 0; i < 4; ++i) session.text_encoder().append_query(batch.tokens, texts[i], i, 0);
  for (int i = 4; i < 8; ++i) session.text_encoder().append_document(batch.tokens, texts[i], i, 1);
  maxim_emulated::start_trace();
  for (int step = 0; step < steps; ++step)
    train_step.run({.step = step, .micro_batches = {&batch, 1}, .global_rows = 4 * world().size},
                   step, 1);
  train_step.read_metrics();
  std::vector<TraceRecord> trace = maxim_emulated::take_trace();
  std::ranges::sort(trace, {}, &TraceRecord::issued);
  return trace;
}

std::vector<TraceRecord> named(const std::vector<TraceRecord>& trace, const std::string& part) {
  std::vector<TraceRecord> found;
  std::ranges::copy_if(trace, std::back_inserter(found), [&](const TraceRecord& record) {
    return record.name.find(part) != std::string::npos;
  });
  return found;
}

}  // namespace

TEST_CASE("overlap: a layer's gradients travel while the layer below is computed") {
  const std::vector<TraceRecord> trace = trace_of_steps(1);
  const auto attention = named(trace, "attention_backward_f32"), adamw = named(trace, "adamw_ker");
  REQUIRE(attention.size() == 2);  // of the second layer, then of the first
  REQUIRE(adamw.size() >= 1);
  const TraceRecord &upper = attention[0], &lower = attention[1];
  const std::vector<TraceRecord> sums = named(trace, "ncclReduceScatter");
  std::vector<TraceRecord> between;
  for (const TraceRecord& sum : sums)
    if (upper.issued < sum.issued && sum.issued < lower.issued) between.push_back(sum);
  if (world().size == 1) {
    CHECK(sums.empty());
    return;
  }
  // A layer of tiny_bert fills three buckets.
  REQUIRE(between.size() >= 3);
  for (const TraceRecord& sum : between) {
    CHECK(sum.stream != lower.stream);
    CHECK(sum.awaited > upper.issued);  // after what made the gradients,
    CHECK(sum.awaited < lower.issued);  // but not after what comes next,
  }
  CHECK(lower.awaited < between[0].issued);  // which does not wait for the sums.
  CHECK(adamw[0].awaited >= sums.back().issued);
}

TEST_CASE("overlap: a batch is copied during the step before, when the one before that is done") {
  const std::vector<TraceRecord> trace = trace_of_steps(3);
  const auto attention = named(trace, "attention_"), copies = named(trace, "copy");
  REQUIRE(attention.size() == 3 * 4);  // of each step: two layers forward, two back
  int64_t of_last = 0;
  for (const TraceRecord& copy : copies) {
    if (copy.stream == attention[0].stream || copy.issued < attention[7].issued) continue;
    if (copy.issued > attention[8].issued) continue;
    ++of_last;
    CHECK(copy.awaited > attention[3].issued);
    CHECK(copy.awaited < attention[4].issued);
  }
  CHECK(of_last >= 6);  // token ids, positions, offsets, key counts, ...
}

}  // namespace maxim_tests

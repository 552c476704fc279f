// One optimizer step on packed batches: model forward, loss, model backward, beside it the sum of
// the gradients over the ranks, AdamW. All memory is taken at the start; nothing is read back from
// the device but by read_metrics().
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "data/batch_loader.h"
#include "loss/contrastive.h"
#include "trainer/model_session.h"
#include "trainer/optimizer.h"

namespace maxim {

struct TrainStepSettings {
  ContrastiveSettings loss;
  OptimizerSettings optimizer;
  ReducerSettings reducer;
  bool size_average =
      true;             // loss and gradients: mean over the queries of the step, else their sum
  StepDropout dropout;  // step is set by run()
  int64_t per_device_batch = 8;
  int64_t metrics_capacity = 10;  // most steps between two read_metrics()
};

struct StepMetrics {
  std::vector<double> losses;  // of each step since the last read, over all ranks
  double gradient_norm = 0;    // of the last step, before clipping
  int64_t skipped_steps = 0;   // since the start: steps whose gradient was not finite
};

class TrainStep {
 public:
  // The session's parameters must be the same on all ranks (see ModelSession::broadcast).
  TrainStep(ModelSession& session, Communicator& communicator, const TrainStepSettings& settings);

  // Step `step` (0-based) with learning rates times `factor`. All ranks call it together.
  void run(const LoadedStep& batches, int64_t step, double factor);
  // Loss of each step since the last call. All ranks call it together; it waits for the device.
  StepMetrics read_metrics();
  // Device bytes by purpose, for the start record and --dry_run: all that is allocated. The first
  // step adds the scratch of its kernels.
  std::vector<std::pair<std::string, int64_t>> memory_plan() const;

 private:
  void run_micro_batch(const LoadedMicroBatch& batch, float scale, const Tensor& loss, bool last);
  bool sharded() const { return settings_.reducer.sharded && communicator_.size() > 1; }

  ModelSession& session_;
  Communicator& communicator_;
  TrainStepSettings settings_;
  DeviceTensor loss_scale_;  // with fp16 only
  GradientReducer reducer_;
  Optimizer optimizer_;
  ContrastiveLoss loss_;
  Arena batch_slots_[2];  // of micro-batches in turn: one is copied while the other is in use
  int64_t micro_batches_ = 0;
  Arena arena_;
  ContrastiveBatch loss_batch_;  // keeps its capacity
  DeviceTensor losses_;          // [metrics_capacity]
  DeviceTensor square_sum_;      // [1] squared norm of the last gradient
  int64_t steps_since_read_ = 0;
};

}  // namespace maxim

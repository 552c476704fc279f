// Makes the token batches of coming steps in a background thread, so that reading and tokenizing
// stand under the computation. At most two steps are ready beside the one in use; the order is the
// sampler's, whatever the timing. The buffers of three steps go round, each with room for the
// largest batch that the lengths allow, so that nothing grows later.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "data/sampler.h"
#include "data/token_batch.h"
#include "data/training_data.h"

namespace maxim {

// One forward-backward pass of this rank. Sequences: the queries of `rows` in order, then the
// documents row by row (positive, negatives…). Dropout's row is the row's place in the step's
// global batch, its column 0 for the query, 1 for the positive, 2… for negatives.
struct LoadedMicroBatch {
  TokenBatch tokens;
  MicroBatch rows;
};

struct LoadedStep {
  int64_t step = 0;
  std::span<const LoadedMicroBatch> micro_batches;
  int64_t global_rows = 0;  // of all micro-batches and all ranks
  double wait_seconds = 0;  // that next() waited for it
};

class BatchLoader {
 public:
  // Loads steps [first_step, last_step) of `sampler`. `data` and `encoder` must outlive this.
  BatchLoader(const TrainingData& data, const TextEncoder& encoder, Sampler sampler,
              int64_t first_step, int64_t last_step);
  ~BatchLoader();  // stops the thread after the row it is at
  BatchLoader(const BatchLoader&) = delete;

  // The next step; valid until the next call. Throws what the thread threw, once the steps before
  // are delivered, and then again at each call. It is an error to ask for more than last_step.
  const LoadedStep& next();

 private:
  static constexpr int64_t kReady = 2;             // steps made ahead
  static constexpr int64_t kBuffers = kReady + 1;  // and the one in use

  struct Buffer {
    LoadedStep step;
    std::vector<LoadedMicroBatch> micro_batches;  // never shrinks
  };

  void run();
  bool load(Buffer& buffer, int64_t step);  // false when asked to stop
  bool fill(LoadedMicroBatch& batch);
  bool stopping();

  const TrainingData& data_;
  const TextEncoder& encoder_;
  Sampler sampler_;
  const int64_t first_step_, last_step_;
  Buffer buffers_[kBuffers];                     // step s is in buffer (s - first_step) % kBuffers
  std::vector<std::vector<std::string>> texts_;  // of a micro-batch's rows; the thread's own

  std::mutex mutex_;  // guards the five below
  std::condition_variable changed_;
  int64_t made_ = 0, taken_ = 0;  // steps
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace maxim

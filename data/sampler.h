// Which rows a rank reads at which step. One permutation an epoch, a function of (seed, epoch)
// alone, is cut into global batches of per_device_batch * world_size rows; rank r takes rows
// [R r / W, R (r+1) / W) of a batch of R, so that the global batch of a step is the same for every
// world size with the same product. The last batch of an epoch may be smaller, and give a rank no
// row. Memory is 8 bytes a row; an epoch's start costs one pass over the rows, a step its own.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace maxim {

struct SamplerSettings {
  int64_t rows = 0;
  int64_t per_device_batch = 8;
  int64_t accumulation = 1;
  int rank = 0, world_size = 1;
  uint64_t seed = 42;
  bool shuffle = true;
  bool drop_last = false;  // leave out an epoch's last global batch when it is not full
};

// One forward-backward pass: global rows [0, global_rows) of this micro-batch, of which this rank
// has `rows`, starting at `first`.
struct MicroBatch {
  std::vector<int64_t> rows;  // row numbers of the data, this rank's
  int64_t first = 0;          // index of rows[0] within the global micro-batch
  int64_t global_rows = 0;    // rows of all ranks
  int64_t step_offset = 0;    // rows of the step's earlier micro-batches (all ranks)
};

class Sampler {
 public:
  // Throws InputError when drop_last leaves nothing.
  explicit Sampler(const SamplerSettings& settings);
  int64_t steps_per_epoch() const;  // optimizer steps; the last may have fewer micro-batches
  int64_t rows_per_epoch() const;   // trained ones; rows - rows_per_epoch are dropped
  // All micro-batches of optimizer step `step` (0-based, of all epochs).
  std::vector<MicroBatch> micro_batches(int64_t step);
  // Row numbers of all ranks at that step, in order.
  std::vector<int64_t> global_rows(int64_t step);

 private:
  int64_t global_batch() const;
  int64_t micro_batches_per_epoch() const;
  std::pair<int64_t, int64_t> row_range(int64_t step);  // of the epoch's order, which is made
  void permute(int64_t epoch);
  SamplerSettings settings_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace maxim

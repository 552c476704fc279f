// Sums over rows in an order that depends on the number of rows alone, not on the threads: rows are
// cut into blocks, each block is summed in row order by one thread, and the blocks' sums are added
// in block order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/vector_math.h"

namespace maxim {

// 32 rows a block keep the partial sums, written and read once, below 1 / 16 of what is read; 64
// blocks feed 64 threads and bound the memory of the sums (always taken for 64 blocks, so that it
// does not grow with a longer batch).
class RowBlocks {
 public:
  static constexpr int64_t kLeastRows = 32, kMostBlocks = 64;

  explicit RowBlocks(int64_t rows)
      : rows_(rows),
        rows_per_block_(std::max(kLeastRows, (rows + kMostBlocks - 1) / kMostBlocks)) {}
  int64_t count() const { return (rows_ + rows_per_block_ - 1) / rows_per_block_; }
  int64_t begin(int64_t block) const { return block * rows_per_block_; }
  int64_t end(int64_t block) const { return std::min(rows_, (block + 1) * rows_per_block_); }

 private:
  int64_t rows_, rows_per_block_;
};

// out[j] += sum over blocks b of partial[b * stride + j], j < width.
inline void add_blocks(float* out, const float* partial, int64_t stride, int64_t blocks,
                       int64_t width) {
  for_each_vector(width, [&](int64_t j, auto v) {
    Floats sum = {};
    for (int64_t b = 0; b < blocks; ++b) sum += v.load(partial + b * stride + j);
    v.store(out + j, v.load(out + j) + sum);
  });
}

}  // namespace maxim

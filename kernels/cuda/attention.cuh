// What attention's kernels share: which rows a block works on, and which probabilities dropout
// keeps.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/dropout.h"

namespace maxim {

// A batch as kernels see it: views of Sequences, and how its blocks are numbered.
struct AttentionBatch {
  const int32_t *offsets, *key_counts, *positions;
  const uint32_t *random_rows, *random_columns;
  int heads;
  int tiles;  // row tiles of the longest sequence
};

// Dropout with what only the host computes. Threshold 0 keeps everything.
struct AttentionDropout {
  uint64_t seed;
  uint32_t step, site, threshold;
  float scale;
};

AttentionShape attention_shape(const CudaOps& ops, const Tensor& qkv, int64_t heads,
                               const Sequences& sequences);
AttentionBatch attention_batch(const Sequences& sequences, int64_t heads, const KernelPlan& plan);
AttentionDropout attention_dropout(const Dropout& dropout);

// Both versions of both passes, each in a file of its name.
void attention_forward_f32(CudaOps& ops, const AttentionForward& args, const Sequences& sequences);
void attention_backward_f32(CudaOps& ops, const AttentionBackward& args,
                            const Sequences& sequences);
void attention_forward_mma(CudaOps& ops, const AttentionForward& args, const Sequences& sequences);
void attention_backward_mma(CudaOps& ops, const AttentionBackward& args,
                            const Sequences& sequences);

// The tile of one head of one sequence that belongs to this block: rows [first, first + size) of
// `rows`, of which the first `keys` are keys. Beyond the sequence's end `size` is not positive.
struct AttentionTile {
  int head;
  int first, size, rows, keys;
  int64_t start;  // row of the batch where the sequence starts
  uint32_t random_row, random_column;

  __device__ __forceinline__ AttentionTile(const AttentionBatch& batch, int tile_rows) {
    const int heads_and_tiles = batch.heads * batch.tiles;
    const int sequence = static_cast<int>(blockIdx.x) / heads_and_tiles;
    const int rest = static_cast<int>(blockIdx.x) % heads_and_tiles;
    head = rest % batch.heads;
    first = rest / batch.heads * tile_rows;
    start = batch.offsets[sequence];
    rows = batch.offsets[sequence + 1] - static_cast<int>(start);
    keys = batch.key_counts[sequence];
    size = min(tile_rows, rows - first);
    random_row = batch.random_rows[sequence];
    random_column = batch.random_columns[sequence];
  }

  // The random bits of keys [8 group, 8 group + 8) for the query at `position`.
  __device__ __forceinline__ Philox4 bits(const AttentionDropout& dropout, int position,
                                          int group) const {
    return dropout_bits(dropout.seed, dropout.step, dropout.site, random_row, random_column,
                        static_cast<uint32_t>(position),
                        static_cast<uint32_t>(head) << 16 | static_cast<uint32_t>(group));
  }
};

}  // namespace maxim

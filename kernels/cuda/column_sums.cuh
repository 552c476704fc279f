// Sums over rows in an order that depends on the shape alone: blocks of rows are summed
// (RowBlocks), then the blocks' sums in block order, by the block that is done last.
#pragma once

#include "kernels/cuda/rows.cuh"

namespace maxim {

// A block's tile of [rows, columns] in a grid of column_plan(): 32 packs of columns, a lane each; a
// warp every eighth row.
template <int N>
struct ColumnTile {
  int64_t begin, end;  // rows
  int warp, lane;
  int64_t column;  // this lane's first; lanes beyond the last column have no work

  __device__ __forceinline__ ColumnTile(int64_t rows, int64_t rows_per_block)
      : begin(blockIdx.y * rows_per_block),
        end(begin + rows_per_block < rows ? begin + rows_per_block : rows),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        column((int64_t{blockIdx.x} * kWarp + lane) * N) {}
};

// The sums of N columns a lane over the block's warps, in ascending order: f(column, sum) for each
// column of the tile, by one thread each. `cells`: kRowThreads * N floats. All threads call it.
template <int N, class F>
__device__ __forceinline__ void for_each_tile_sum(const float (&sums)[N], float* cells, F&& f) {
#pragma unroll
  for (int e = 0; e < N; ++e) cells[e * kRowThreads + threadIdx.x] = sums[e];
  __syncthreads();
  if (threadIdx.x >= kWarp * N) return;
  const int lane = threadIdx.x / N, e = threadIdx.x % N;
  float sum = 0;
  for (int w = 0; w < kRowWarps; ++w) sum += cells[e * kRowThreads + w * kWarp + lane];
  f((int64_t{blockIdx.x} * kWarp + lane) * N + e, sum);
}

struct Place;  // the tag of is_last_block()

// Whether this block is the last of `blocks` that come here: then it sees what all of them wrote
// before. All threads call it. `ticket` is 0 before and, when the last was here, after. (Which
// block is the last depends on timing; what it computes does not.)
__device__ __forceinline__ bool is_last_block(unsigned* ticket, unsigned blocks) {
  unsigned* place = static_shared<Place, unsigned, 1>();
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *place = atomicInc(ticket, blocks - 1);
  __syncthreads();
  const bool last = *place == blocks - 1;
  __threadfence();
  return last;
}

// What the kernels of a grid of column_plan() need to add their sums to `out` [columns].
struct ColumnSums {
  float* out;
  float* partial;     // [blocks of rows, columns]
  unsigned* tickets;  // [tiles of columns]
};

// out[j] += the sums of the block's tile, N columns a lane, over all blocks of rows, in their
// order, by the last block. `cells`: kRowThreads * N floats of shared memory. All threads call it.
template <int N>
__device__ __forceinline__ void add_tile_sums(const ColumnSums& o, int64_t columns,
                                              const float (&sums)[N], float* cells) {
  for_each_tile_sum<N>(sums, cells, [&](int64_t column, float sum) {
    if (column < columns) o.partial[blockIdx.y * columns + column] = sum;
  });
  if (!is_last_block(o.tickets + blockIdx.x, gridDim.y)) return;
  const int64_t column = int64_t{blockIdx.x} * kWarp * N + threadIdx.x;
  if (threadIdx.x >= kWarp * N || column >= columns) return;
  float sum = 0;
#pragma unroll 16
  for (unsigned b = 0; b < gridDim.y; ++b) sum += o.partial[b * columns + column];
  o.out[column] += sum;
}

inline ColumnSums column_sums(CudaOps& ops, const Tensor& out) {
  const int64_t columns = out.size();
  return {out.as<float>(), ops.scratch().floats(kMostColumnBlocks * columns, "sums of columns"),
          ops.tickets(ceil_div(columns, kWarp))};
}

}  // namespace maxim

// Sums over rows in two stages, in an order that depends on the shape alone: blocks of rows are
// summed (RowBlocks), then the blocks' sums in block order.
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

// out[k][j] += sum over b of partial[b][k][j], in the order of b; k < kinds, j < columns.
struct PartialSums {
  float* out[3] = {nullptr, nullptr, nullptr};  // null: not wanted
  const float* partial = nullptr;               // [blocks, kinds, columns]
  int64_t blocks = 0, columns = 0;
  int kinds = 1;
};
void add_partial_sums(CudaOps& ops, const PartialSums& sums);

}  // namespace maxim

// out[j] += sum over rows of x[·, j], in two stages (column_sums.cuh): blocks of rows, then the
// blocks in order. Reads x once.
#include "kernels/cuda/column_sums.cuh"

namespace maxim {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    column_sums_kernel(float* partial, const T* x, int64_t rows, int64_t columns,
                       int64_t rows_per_block) {
  const ColumnTile<N> tile(rows, rows_per_block);
  float sums[N] = {};
  if (tile.column < columns) {
#pragma unroll 4
    for (int64_t t = tile.begin + tile.warp; t < tile.end; t += kRowWarps) {
      const auto pack = Pack<T, N>::load(x + t * columns + tile.column);
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += pack[e];
    }
  }
  for_each_tile_sum<N>(sums, shared_memory<float>(), [&](int64_t column, float sum) {
    if (column < columns) partial[blockIdx.y * columns + column] = sum;
  });
}

// 32 columns a block: warp w adds blocks w, w + 8, …; then the warps in order. One thread a column
// would wait for hundreds of loads one after the other.
__global__ void __launch_bounds__(kRowThreads) add_partial_sums_kernel(const PartialSums sums) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t width = sums.kinds * sums.columns, column = int64_t{blockIdx.x} * kWarp + lane;
  float sum[1] = {0};
  if (column < width) {
#pragma unroll 8
    for (int64_t b = warp; b < sums.blocks; b += kRowWarps)
      sum[0] += sums.partial[b * width + column];
  }
  for_each_tile_sum<1>(sum, shared_memory<float>(), [&](int64_t c, float total) {
    if (c >= width) return;
    const int64_t kind = c / sums.columns;
    float* out = kind == 0 ? sums.out[0] : kind == 1 ? sums.out[1] : sums.out[2];
    if (out != nullptr) out[c - kind * sums.columns] += total;
  });
}

}  // namespace

void add_partial_sums(CudaOps& ops, const PartialSums& sums) {
  launch(ops, add_partial_sums_plan(sums.blocks, sums.kinds * sums.columns),
         add_partial_sums_kernel, sums);
}

void CudaOps::add_column_sums(const Tensor& out, const Tensor& x) {
  const int64_t rows = x.rows(), columns = x.cols();
  check_size(out, columns, "the sums");
  const RowBlocks blocks = column_row_blocks(rows);
  float* partial = scratch_.floats(kMostColumnBlocks * columns, "column sums");
  for_packs(x.dtype(), columns, {x.data()}, [&](auto zero, auto width) {
    using T = decltype(zero);
    constexpr int N = decltype(width)::value;
    launch(*this, column_sums_plan(rows, columns, sizeof(T), N), column_sums_kernel<T, N>, partial,
           x.as<T>(), rows, columns, blocks.rows_per_block);
  });
  add_partial_sums(
      *this,
      {.out = {out.as<float>()}, .partial = partial, .blocks = blocks.count(), .columns = columns});
}

}  // namespace maxim

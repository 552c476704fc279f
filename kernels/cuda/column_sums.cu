// out[j] += sum over rows of x[·, j] (column_sums.cuh). Reads x once.
#include "kernels/cuda/column_sums.cuh"

namespace maxim {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    column_sums_kernel(const ColumnSums o, const T* x, int64_t rows, int64_t columns,
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
  add_tile_sums<N>(o, columns, sums, shared_memory<float>());
}

}  // namespace

void CudaOps::add_column_sums(const Tensor& out, const Tensor& x) {
  const int64_t rows = x.rows(), columns = x.cols();
  check_size(out, columns, "the sums");
  const RowBlocks blocks = column_row_blocks(rows);
  const ColumnSums sums = column_sums(*this, out);
  for_packs(x.dtype(), columns, {x.data()}, [&](auto zero, auto width) {
    using T = decltype(zero);
    constexpr int N = decltype(width)::value;
    launch(*this, column_sums_plan(rows, columns, sizeof(T), N), column_sums_kernel<T, N>, sums,
           x.as<T>(), rows, columns, blocks.rows_per_block);
  });
}

}  // namespace maxim

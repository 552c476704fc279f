// GELU (Hendrycks and Gimpel 2016) in its exact form, as BERT's: gelu(x) = x Phi(x), Phi the normal
// distribution; gelu'(x) = Phi(x) + x phi(x).
//
// Forward: h is read, y written, a pack a thread. Backward: the output is computed again, so only h
// needs to be saved: h and d_y are read, y and d_h written. A lane owns a pack of columns and a
// warp every eighth row of a block of rows; d_bias is the blocks' sum in block order
// (column_sums.cuh).
#include "kernels/cuda/column_sums.cuh"

namespace maxim {
namespace {

__device__ __forceinline__ float normal_cdf(float x) {
  return 0.5f + 0.5f * erff(x * 0.70710678f);  // 1 / sqrt(2)
}
__device__ __forceinline__ float normal_density(float x) {
  return 0.39894228f * expf(-0.5f * x * x);  // 1 / sqrt(2 pi)
}

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) gelu_forward_kernel(T* y, const T* h, int64_t size) {
  const int64_t at = (int64_t{blockIdx.x} * kRowThreads + threadIdx.x) * N;
  if (at >= size) return;
  float x[N];
  load_pack<N>(x, h + at);
#pragma unroll
  for (int e = 0; e < N; ++e) x[e] *= normal_cdf(x[e]);
  store_pack<N>(y + at, x);
}

template <class T>
struct Backward {
  T *y, *d_h;
  ColumnSums d_bias;
  const T *d_y, *h;
  int64_t rows, columns, rows_per_block;
};

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) gelu_backward_kernel(const Backward<T> o) {
  const ColumnTile<N> tile(o.rows, o.rows_per_block);
  float sums[N] = {};
  if (tile.column < o.columns)
    for (int64_t t = tile.begin + tile.warp; t < tile.end; t += kRowWarps) {
      const int64_t at = t * o.columns + tile.column;
      float x[N], d[N];
      load_pack<N>(x, o.h + at);
      load_pack<N>(d, o.d_y + at);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const float cdf = normal_cdf(x[e]);
        d[e] *= fmaf(x[e], normal_density(x[e]), cdf);
        x[e] *= cdf;
        sums[e] += d[e];
      }
      store_pack<N>(o.y + at, x);
      store_pack<N>(o.d_h + at, d);
    }
  add_tile_sums<N>(o.d_bias, o.columns, sums, shared_memory<float>());
}

}  // namespace

void CudaOps::gelu_forward(const Tensor& y, const Tensor& h) {
  const int64_t size = h.size();
  check_size(y, size, "y");
  for_packs(h.dtype(), size, {y.data(), h.data()}, [&](auto zero, auto width) {
    using T = decltype(zero);
    constexpr int N = decltype(width)::value;
    launch(*this, gelu_forward_plan(size, sizeof(T), N), gelu_forward_kernel<T, N>, y.as<T>(),
           h.as<T>(), size);
  });
}

void CudaOps::gelu_backward(const Tensor& y, const Tensor& d_h, const Tensor& d_bias,
                            const Tensor& d_y, const Tensor& h) {
  const int64_t rows = h.rows(), columns = h.cols();
  check_size(y, h.size(), "y");
  check_size(d_h, h.size(), "d_h");
  check_size(d_y, h.size(), "d_y");
  check_size(d_bias, columns, "d_bias");
  const RowBlocks blocks = column_row_blocks(rows);
  const ColumnSums sums = column_sums(*this, d_bias);
  for_packs(
      h.dtype(), columns, {y.data(), d_h.data(), d_y.data(), h.data()}, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int N = decltype(width)::value;
        launch(*this, gelu_backward_plan(rows, columns, sizeof(T), N), gelu_backward_kernel<T, N>,
               Backward<T>{.y = y.as<T>(),
                           .d_h = d_h.as<T>(),
                           .d_bias = sums,
                           .d_y = d_y.as<T>(),
                           .h = h.as<T>(),
                           .rows = rows,
                           .columns = columns,
                           .rows_per_block = blocks.rows_per_block});
      });
}

}  // namespace maxim

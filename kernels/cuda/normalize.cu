// Rows scaled to length 1, y = x / max(|x|, 1e-12) as torch.nn.functional.normalize, and the way
// back: the part of d_y along y is taken out, d_x = (d_y - y (y . d_y)) / norm. A warp (a block,
// for a long row) keeps its row in registers, so each row is read and written once.
#include "kernels/cuda/rows.cuh"

namespace maxim {
namespace {

constexpr float kLeastNorm = 1e-12f;

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    normalize_forward_kernel(T* y, float* norm, const T* x, int64_t rows, int columns) {
  const RowLanes<N> row(columns);
  const int64_t t = row.row(), at = t * columns;
  if (t >= rows) return;
  float values[kLaneColumns<N>], squares = 0;
  row.for_each_pack([&](int i, int column) {
    load_pack<N>(values + i * N, x + at + column);
#pragma unroll
    for (int e = 0; e < N; ++e) squares = fmaf(values[i * N + e], values[i * N + e], squares);
  });
  const float length = sqrtf(row.sum(squares, shared_memory<float>()));
  const float divisor = length < kLeastNorm ? kLeastNorm : length;  // NaN stays
  const float scale = 1.0f / divisor;
  row.for_each_pack([&](int i, int column) {
#pragma unroll
    for (int e = 0; e < N; ++e) values[i * N + e] *= scale;
    store_pack<N>(y + at + column, values + i * N);
  });
  if (row.is_first()) norm[t] = divisor;
}

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    normalize_backward_kernel(T* d_x, const float* d_y, const T* y, const float* norm, int64_t rows,
                              int columns) {
  const RowLanes<N> row(columns);
  const int64_t t = row.row(), at = t * columns;
  if (t >= rows) return;
  float d[kLaneColumns<N>], u[kLaneColumns<N>], product = 0;
  row.for_each_pack([&](int i, int column) {
    load_pack<N>(d + i * N, d_y + at + column);
    load_pack<N>(u + i * N, y + at + column);
#pragma unroll
    for (int e = 0; e < N; ++e) product = fmaf(d[i * N + e], u[i * N + e], product);
  });
  // Below the least norm, y is a constant multiple of x and has no direction to take out.
  const float dot = row.sum(product, shared_memory<float>());
  const float along = norm[t] > kLeastNorm ? dot : 0.0f;
  const float scale = 1.0f / norm[t];
  row.for_each_pack([&](int i, int column) {
#pragma unroll
    for (int e = 0; e < N; ++e) d[i * N + e] = (d[i * N + e] - u[i * N + e] * along) * scale;
    store_pack<N>(d_x + at + column, d + i * N);
  });
}

}  // namespace

void CudaOps::normalize_forward(const Tensor& y, const Tensor& norm, const Tensor& x) {
  const int64_t rows = x.rows(), d = x.cols();
  check_rows(y, rows, d, "y");
  check_size(norm, rows, "norm");
  for_packs(x.dtype(), d, {y.data(), x.data()}, [&](auto zero, auto width) {
    using T = decltype(zero);
    constexpr int N = decltype(width)::value;
    launch(*this, normalize_forward_plan(rows, d, sizeof(T), N), normalize_forward_kernel<T, N>,
           y.as<T>(), norm.as<float>(), x.as<T>(), rows, d);
  });
}

void CudaOps::normalize_backward(const Tensor& d_x, const Tensor& d_y, const Tensor& y,
                                 const Tensor& norm) {
  const int64_t rows = y.rows(), d = y.cols();
  check_rows(d_x, rows, d, "d_x");
  check_rows(d_y, rows, d, "d_y");
  check_size(norm, rows, "norm");
  for_packs(y.dtype(), d, {d_x.data(), d_y.data(), y.data()}, [&](auto zero, auto width) {
    using T = decltype(zero);
    constexpr int N = decltype(width)::value;
    launch(*this, normalize_backward_plan(rows, d, sizeof(T), N), normalize_backward_kernel<T, N>,
           d_x.as<T>(), d_y.as<float>(), y.as<T>(), norm.as<float>(), rows, d);
  });
}

}  // namespace maxim

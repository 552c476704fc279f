// LayerNorm of a residual sum: s = residual + dropout(x), y = gamma (s - mean) rstd + beta, and the
// way back. norm_row.cuh has the formulas of a row.
//
// A warp owns a row of up to 1,024 columns and keeps it in registers (a block owns a longer one),
// so each byte moves once. Forward: x and residual are read, s and y written. Saved: s as it was
// rounded to its type, and mean and rstd of that. Backward: d_y and s are read, d_s and d_x
// written; masks are drawn again. d_gamma, d_beta and d_bias: a block sums its rows (RowBlocks),
// the last adds the blocks in order, so no bit depends on timing or on the GPU.
#include "kernels/cuda/norm_row.cuh"

namespace maxim {
namespace {

template <class T>
struct Forward {
  T *y, *s;
  float *mean, *rstd;
  const T *x, *residual;
  const float *gamma, *beta;
  int64_t rows;
  int columns;
  float epsilon;
  HiddenDropout dropout;
};

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) layer_norm_forward_kernel(const Forward<T> o) {
  const RowLanes<N> row(o.columns);
  const int64_t t = row.row(), at = t * o.columns;
  if (t >= o.rows) return;
  const DropoutMask mask = o.dropout.mask(row, t);
  float s[kLaneColumns<N>], sum = 0;
  row.for_each_pack([&](int i, int column) {
    float x[N], residual[N];
    load_pack<N>(x, o.x + at + column);
    load_pack<N>(residual, o.residual + at + column);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      s[i * N + e] = to_float(from_float<T>(residual[e] + mask.apply(x[e], i * N + e)));
      sum += s[i * N + e];
    }
  });
  const Moments m = moments_of(row, s, sum, o.epsilon, shared_memory<float>());
  row.for_each_pack([&](int i, int column) {
    float y[N];
    norm_pack<N>(y, s + i * N, m, o.gamma + column, o.beta + column);
    store_pack<N>(o.s + at + column, s + i * N);
    store_pack<N>(o.y + at + column, y);
  });
  if (row.is_first()) {
    o.mean[t] = m.mean;
    o.rstd[t] = m.rstd;
  }
}

template <class T>
struct Apply {
  T* y;
  const T* s;
  const float *mean, *rstd, *gamma, *beta;
  int64_t rows;
  int columns;
};

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) layer_norm_apply_kernel(const Apply<T> o) {
  const RowLanes<N> row(o.columns);
  const int64_t t = row.row(), at = t * o.columns;
  if (t >= o.rows) return;
  const Moments m = {o.mean[t], o.rstd[t]};
  row.for_each_pack([&](int, int column) {
    float s[N], y[N];
    load_pack<N>(s, o.s + at + column);
    norm_pack<N>(y, s, m, o.gamma + column, o.beta + column);
    store_pack<N>(o.y + at + column, y);
  });
}

template <class T>
struct Backward {
  T *d_s, *d_x, *y;  // d_x and y may be null
  NormSums sums;     // d_gamma, d_beta, d_bias
  const T *d_y, *s;
  const float *mean, *rstd, *gamma, *beta;
  int64_t rows, rows_per_block;
  int columns;
  HiddenDropout dropout;
};

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads, kGradientBlocks<T, N>)
    layer_norm_backward_kernel(const Backward<T> o) {
  auto* scratch = shared_memory<float>();
  const RowLanes<N> row(o.columns);
  const ThreadSums<N> sums(row, scratch + 2 * kWarp);
  const bool wants_bias = o.sums.out[2] != nullptr;
  const int64_t begin = blockIdx.x * o.rows_per_block;
  const int64_t end = begin + o.rows_per_block < o.rows ? begin + o.rows_per_block : o.rows;
  for (int64_t t = begin + row.group; t < end; t += row.groups) {
    const int64_t at = t * o.columns;
    const DropoutMask mask = o.dropout.mask(row, t);
    float d[kLaneColumns<N>];
    norm_row_backward(d, sums, row, o.d_y + at, o.s + at, o.gamma, {o.mean[t], o.rstd[t]}, {},
                      scratch, o.y == nullptr ? nullptr : o.y + at, o.beta);
    row.for_each_pack([&](int i, int column) {
      store_pack<N>(o.d_s + at + column, d + i * N);
      if (o.d_x == nullptr && !wants_bias) return;
#pragma unroll
      for (int e = 0; e < N; ++e) d[i * N + e] = mask.apply(d[i * N + e], i * N + e);
      if (o.d_x != nullptr) store_pack<N>(o.d_x + at + column, d + i * N);
      if (wants_bias) sums.add(2, i, d + i * N);
    });
  }
  sums.add_to(o.sums);
}

}  // namespace

void CudaOps::layer_norm_forward(const LayerNormForward& args, const Sequences& sequences) {
  const int64_t rows = args.y.rows(), h = args.y.cols();
  check(args);
  for_packs(args.y.dtype(), h,
            {args.y.data(), args.s.data(), args.x.data(), args.residual.data(), args.gamma.data(),
             args.beta.data()},
            [&](auto zero, auto width) {
              using T = decltype(zero);
              constexpr int N = decltype(width)::value;
              launch(*this, layer_norm_forward_plan(rows, h, sizeof(T), N),
                     layer_norm_forward_kernel<T, N>,
                     Forward<T>{.y = args.y.as<T>(),
                                .s = args.s.as<T>(),
                                .mean = args.mean.as<float>(),
                                .rstd = args.rstd.as<float>(),
                                .x = args.x.as<T>(),
                                .residual = args.residual.as<T>(),
                                .gamma = args.gamma.as<float>(),
                                .beta = args.beta.as<float>(),
                                .rows = rows,
                                .columns = static_cast<int>(h),
                                .epsilon = args.epsilon,
                                .dropout = HiddenDropout(args.dropout, sequences)});
            });
}

void CudaOps::layer_norm_backward(const LayerNormBackward& args, const Sequences& sequences) {
  const int64_t rows = args.d_y.rows(), h = args.d_y.cols();
  check(args);
  const RowBlocks blocks = norm_row_blocks(rows);
  const NormSums sums = norm_sums(*this, args.d_gamma, args.d_beta, args.d_bias);
  const bool wants_d_x = !args.d_x.absent(), wants_y = !args.y.absent();
  for_packs(args.d_y.dtype(), h,
            {args.d_s.data(), args.d_x.data(), args.y.data(), args.d_y.data(), args.s.data(),
             args.gamma.data(), args.beta.data()},
            [&](auto zero, auto width) {
              using T = decltype(zero);
              constexpr int N = decltype(width)::value;
              launch(*this, layer_norm_backward_plan(rows, h, sizeof(T), N, wants_d_x, wants_y),
                     layer_norm_backward_kernel<T, N>,
                     Backward<T>{.d_s = args.d_s.as<T>(),
                                 .d_x = wants_d_x ? args.d_x.as<T>() : nullptr,
                                 .y = wants_y ? args.y.as<T>() : nullptr,
                                 .sums = sums,
                                 .d_y = args.d_y.as<T>(),
                                 .s = args.s.as<T>(),
                                 .mean = args.mean.as<float>(),
                                 .rstd = args.rstd.as<float>(),
                                 .gamma = args.gamma.as<float>(),
                                 .beta = wants_y ? args.beta.as<float>() : nullptr,
                                 .rows = rows,
                                 .rows_per_block = blocks.rows_per_block,
                                 .columns = static_cast<int>(h),
                                 .dropout = HiddenDropout(args.dropout, sequences)});
            });
}

void CudaOps::layer_norm_apply(const Tensor& y, const Tensor& s, const Tensor& mean,
                               const Tensor& rstd, const Tensor& gamma, const Tensor& beta) {
  const int64_t rows = y.rows(), h = y.cols();
  check_layer_norm_apply(y, s, mean, rstd, gamma, beta);
  for_packs(
      y.dtype(), h, {y.data(), s.data(), gamma.data(), beta.data()}, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int N = decltype(width)::value;
        launch(*this, layer_norm_apply_plan(rows, h, sizeof(T), N), layer_norm_apply_kernel<T, N>,
               Apply<T>{.y = y.as<T>(),
                        .s = s.as<T>(),
                        .mean = mean.as<float>(),
                        .rstd = rstd.as<float>(),
                        .gamma = gamma.as<float>(),
                        .beta = beta.as<float>(),
                        .rows = rows,
                        .columns = static_cast<int>(h)});
      });
}

}  // namespace maxim

// Cross-entropy of scores against the positive's column, the contrastive loss (InfoNCE, van den
// Oord et al. 2018) of late interaction:
//
//   z = scores / temperature        loss += scale * sum over rows (log sum_j e^z_j - z_target)
//   d_scores = scale / temperature * (softmax(z) - onehot(target)) [* loss scale]
//
// A block owns a row. It goes over the row three times (maximum, sum, gradient), but memory is
// asked once: a row of thousands of scores lies in the first-level cache. A row is shifted by its
// maximum, and the shift also takes the target: maximum + log(sum) - z_target would lose the loss
// of a row that is nearly right. Sums are in double: each thread's columns in ascending order, then
// the threads; a second kernel adds the rows the same way. A NaN score makes the loss NaN.
//
// Targets are on the device and are not checked by the host: a target beyond the columns makes its
// row and the loss NaN.
#include "kernels/cuda/rows.cuh"

namespace maxim {
namespace {

// Room taken at the first call, so that a later step with more rows asks for no more: 64 KB.
constexpr int64_t kLeastScratchRows = 8192;

struct Operands {
  float* d_scores;
  double* row_losses;
  const float* scores;
  const int32_t* targets;
  const float* loss_scale;  // null: 1
  int64_t columns;
  float temperature, gradient_scale;
};

template <int N>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_kernel(const Operands o) {
  auto* sums = shared_memory<double>();
  auto* maxima = reinterpret_cast<float*>(sums + kWarp);
  const int64_t row = blockIdx.x;
  const float* scores = o.scores + row * o.columns;
  float* d_scores = o.d_scores + row * o.columns;
  const int64_t target = o.targets[row];
  // Read before the row is written over.
  const bool inside = 0 <= target && target < o.columns;
  const float fault = inside ? 0.0f : __int_as_float(0x7FFFFFFF);  // NaN
  const float target_score = inside ? scores[target] : fault;
  const int64_t first = int64_t{threadIdx.x} * N, step = int64_t{kRowThreads} * N;

  float most = -INFINITY;
  for (int64_t j = first; j < o.columns; j += step) {
    const auto pack = Pack<float, N>::load(scores + j);
#pragma unroll
    for (int e = 0; e < N; ++e) most = fmaxf(most, pack[e]);
  }
  most = block_max(most, maxima);

  double sum = 0;
  for (int64_t j = first; j < o.columns; j += step) {
    const auto pack = Pack<float, N>::load(scores + j);
#pragma unroll
    for (int e = 0; e < N; ++e) sum += expf((pack[e] - most) / o.temperature);
  }
  sum = block_sum(sum, sums);

  const float gradient_scale =
      o.loss_scale == nullptr ? o.gradient_scale : o.gradient_scale * *o.loss_scale;
  const float factor = static_cast<float>(gradient_scale / sum) + fault;
  for (int64_t j = first; j < o.columns; j += step) {
    auto pack = Pack<float, N>::load(scores + j);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float gradient = expf((pack[e] - most) / o.temperature) * factor;
      pack.x[e] = j + e == target ? gradient - gradient_scale : gradient;
    }
    store_pack<N>(d_scores + j, pack.x);
  }
  if (threadIdx.x == 0)
    o.row_losses[row] = log(sum) - (static_cast<double>(target_score) - most) / o.temperature;
}

__global__ void __launch_bounds__(kRowThreads)
    add_losses_kernel(float* loss, const double* row_losses, int64_t rows, float scale) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kRowThreads) sum += row_losses[i];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) *loss += static_cast<float>(scale * sum);
}

}  // namespace

void CudaOps::cross_entropy(const CrossEntropy& args) {
  const int64_t rows = args.scores.rows(), columns = args.scores.cols();
  check_size(args.d_scores, args.scores.size(), "d_scores");
  check_size(args.targets, rows, "targets");
  check_size(args.loss, 1, "loss");
  MAXIM_CHECK(args.temperature > 0, "temperature {}", args.temperature);
  double* row_losses = scratch_.doubles(std::max(rows, kLeastScratchRows), "losses of the rows");
  const Operands operands{
      .d_scores = args.d_scores.as<float>(),
      .row_losses = row_losses,
      .scores = args.scores.as<float>(),
      .targets = args.targets.as<int32_t>(),
      .loss_scale = args.loss_scale.absent() ? nullptr : args.loss_scale.as<float>(),
      .columns = columns,
      .temperature = args.temperature,
      .gradient_scale = args.scale / args.temperature};
  const KernelPlan plan = cross_entropy_plan(rows, columns);
  if (pack_width(sizeof(float), columns, {args.d_scores.data(), args.scores.data()}) == 4)
    launch(*this, plan, cross_entropy_kernel<4>, operands);
  else
    launch(*this, plan, cross_entropy_kernel<1>, operands);
  launch(*this, add_losses_plan(rows), add_losses_kernel, args.loss.as<float>(), row_losses, rows,
         args.scale);
}

}  // namespace maxim

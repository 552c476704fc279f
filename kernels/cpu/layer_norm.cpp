// LayerNorm of a residual sum: s = residual + dropout(x), y = gamma (s - mean) rstd + beta, and the
// way back. norm_row.h has the formulas of a row.
//
// Forward: one pass over memory, 16 T H bytes: x and residual are read, s and y written. Saved: s,
// mean, rstd. Backward: 16 T H bytes with dropout: d_y and s are read, d_s and d_x written; masks
// are drawn again. A row belongs to one thread; d_gamma, d_beta and d_bias are sums over row blocks
// (row_blocks.h), so no result depends on the number of threads.
#include "kernels/checks.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/norm_row.h"
#include "kernels/cpu/row_blocks.h"

namespace maxim {
namespace {

// s = residual + dropout(x); returns the sum of s, lane by lane.
Floats add_residual(float* s, const float* residual, const float* x, const RowDropout& dropout,
                    int64_t t, int64_t h) {
  Floats sum = {};
  if (!dropout.active()) {
    for_each_vector(h, [&](int64_t j, auto v) {
      const Floats value = v.load(residual + j) + v.load(x + j);
      v.store(s + j, value);
      sum += value;
    });
    return sum;
  }
  RowDropout::Bits bits;
  dropout.draw(bits, t);
  for_each_vector(h, [&](int64_t j, auto v) {
    const Floats value = v.load(residual + j) + dropout.mask.apply(v.load(x + j), bits + j);
    v.store(s + j, value);
    sum += value;
  });
  return sum;
}

// d_x = dropout's mask applied to d_s; d_bias += d_x. Either may be null.
void drop_gradient(float* d_x, float* d_bias, const float* d_s, const RowDropout& dropout,
                   int64_t t, int64_t h) {
  RowDropout::Bits bits;
  if (dropout.active()) dropout.draw(bits, t);
  for_each_vector(h, [&](int64_t j, auto v) {
    Floats d = v.load(d_s + j);
    if (dropout.active()) d = dropout.mask.apply(d, bits + j);
    if (d_x != nullptr) v.store(d_x + j, d);
    if (d_bias != nullptr) v.store(d_bias + j, v.load(d_bias + j) + d);
  });
}

}  // namespace

void CpuOps::layer_norm_forward(const LayerNormForward& args, const Sequences& sequences) {
  const int64_t rows = args.y.rows(), h = args.y.cols();
  check(args);
  const RowDropout dropout(args.dropout, sequences, h);
  float *y = args.y.as<float>(), *s = args.s.as<float>();
  float *mean = args.mean.as<float>(), *rstd = args.rstd.as<float>();
  const float *x = args.x.as<float>(), *residual = args.residual.as<float>();
  const float *gamma = args.gamma.as<float>(), *beta = args.beta.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < rows; ++t) {
    const Floats sum = add_residual(s + t * h, residual + t * h, x + t * h, dropout, t, h);
    const Moments m = moments_of(s + t * h, sum, h, args.epsilon);
    norm_row(y + t * h, s + t * h, m, gamma, beta, h);
    mean[t] = m.mean;
    rstd[t] = m.rstd;
  }
}

void CpuOps::layer_norm_backward(const LayerNormBackward& args, const Sequences& sequences) {
  const int64_t rows = args.d_y.rows(), h = args.d_y.cols();
  check(args);
  const RowDropout dropout(args.dropout, sequences, h);
  const RowBlocks blocks(rows);
  float* partial =
      partial_sums_.floats(RowBlocks::kMostBlocks * 3 * h, "sums of LayerNorm gradients");
  float* d_s = args.d_s.as<float>();
  float* d_x = args.d_x.absent() ? nullptr : args.d_x.as<float>();
  const float *d_y = args.d_y.as<float>(), *s = args.s.as<float>();
  const float *mean = args.mean.as<float>(), *rstd = args.rstd.as<float>();
  const float* gamma = args.gamma.as<float>();
  const bool wants_bias = !args.d_bias.absent(), wants_y = !args.y.absent();
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks.count(); ++b) {
    float* sums = partial + b * 3 * h;  // d_gamma, d_beta, d_bias
    std::fill_n(sums, 3 * h, 0.0f);
    for (int64_t t = blocks.begin(b); t < blocks.end(b); ++t) {
      norm_row_backward(d_s + t * h, sums, sums + h, d_y + t * h, s + t * h, {mean[t], rstd[t]},
                        gamma, h);
      if (wants_y)
        norm_row(args.y.as<float>() + t * h, s + t * h, {mean[t], rstd[t]}, gamma,
                 args.beta.as<float>(), h);
      if (d_x != nullptr || wants_bias)
        drop_gradient(d_x == nullptr ? nullptr : d_x + t * h, wants_bias ? sums + 2 * h : nullptr,
                      d_s + t * h, dropout, t, h);
    }
  }
  add_blocks(args.d_gamma.as<float>(), partial, 3 * h, blocks.count(), h);
  add_blocks(args.d_beta.as<float>(), partial + h, 3 * h, blocks.count(), h);
  if (wants_bias) add_blocks(args.d_bias.as<float>(), partial + 2 * h, 3 * h, blocks.count(), h);
}

void CpuOps::layer_norm_apply(const Tensor& y, const Tensor& s, const Tensor& mean,
                              const Tensor& rstd, const Tensor& gamma, const Tensor& beta) {
  const int64_t rows = y.rows(), h = y.cols();
  check_layer_norm_apply(y, s, mean, rstd, gamma, beta);
  float* out = y.as<float>();
  const float *in = s.as<float>(), *means = mean.as<float>(), *rstds = rstd.as<float>();
  const float *g = gamma.as<float>(), *b = beta.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < rows; ++t)
    norm_row(out + t * h, in + t * h, {means[t], rstds[t]}, g, b, h);
}

}  // namespace maxim

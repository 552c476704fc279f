#include "tests/reference/layer_norm.h"

#include <cmath>

namespace maxim_tests {

LayerNorm layer_norm(const std::vector<double>& s, const std::vector<double>& gamma,
                     const std::vector<double>& beta, double epsilon) {
  const size_t h = gamma.size(), rows = s.size() / h;
  LayerNorm r{std::vector<double>(s.size()), std::vector<double>(rows), std::vector<double>(rows)};
  for (size_t t = 0; t < rows; ++t) {
    for (size_t j = 0; j < h; ++j) r.mean[t] += s[t * h + j] / h;
    double variance = 0;
    for (size_t j = 0; j < h; ++j) variance += std::pow(s[t * h + j] - r.mean[t], 2) / h;
    r.rstd[t] = 1 / std::sqrt(variance + epsilon);
    for (size_t j = 0; j < h; ++j)
      r.y[t * h + j] = gamma[j] * (s[t * h + j] - r.mean[t]) * r.rstd[t] + beta[j];
  }
  return r;
}

LayerNormGradients layer_norm_gradients(const std::vector<double>& d_y,
                                        const std::vector<double>& s,
                                        const std::vector<double>& gamma, double epsilon) {
  const size_t h = gamma.size(), rows = s.size() / h;
  const LayerNorm forward = layer_norm(s, gamma, std::vector<double>(h), epsilon);
  LayerNormGradients g{std::vector<double>(s.size()), std::vector<double>(h),
                       std::vector<double>(h)};
  for (size_t t = 0; t < rows; ++t) {
    const auto x = [&](size_t j) { return (s[t * h + j] - forward.mean[t]) * forward.rstd[t]; };
    double mean = 0, along = 0;  // of d_y gamma and of d_y gamma x
    for (size_t j = 0; j < h; ++j) {
      const double d = d_y[t * h + j];
      g.d_gamma[j] += d * x(j);
      g.d_beta[j] += d;
      mean += d * gamma[j] / h;
      along += d * gamma[j] * x(j) / h;
    }
    for (size_t j = 0; j < h; ++j)
      g.d_s[t * h + j] = forward.rstd[t] * (d_y[t * h + j] * gamma[j] - mean - x(j) * along);
  }
  return g;
}

}  // namespace maxim_tests

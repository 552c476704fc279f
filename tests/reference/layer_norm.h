// LayerNorm in plain double loops, rows [T, H].
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

struct LayerNorm {
  std::vector<double> y, mean, rstd;
};
LayerNorm layer_norm(const std::vector<double>& s, const std::vector<double>& gamma,
                     const std::vector<double>& beta, double epsilon);

struct LayerNormGradients {
  std::vector<double> d_s, d_gamma, d_beta;
};
LayerNormGradients layer_norm_gradients(const std::vector<double>& d_y,
                                        const std::vector<double>& s,
                                        const std::vector<double>& gamma, double epsilon);

}  // namespace maxim_tests

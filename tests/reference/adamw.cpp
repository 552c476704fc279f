#include "tests/reference/adamw.h"

#include <algorithm>
#include <cmath>

namespace maxim_tests {

void adamw_step(AdamWState& state, const std::vector<double>& gradients,
                const std::vector<double>& learning_rate, const std::vector<double>& weight_decay,
                const AdamWRates& rates) {
  double square_sum = 0;
  for (const double g : gradients) square_sum += g * g;
  const double clip = rates.max_grad_norm == 0
                          ? 1
                          : std::min(1.0, rates.max_grad_norm / (std::sqrt(square_sum) + 1e-6));
  const auto t = static_cast<double>(++state.step);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (learning_rate[i] == 0) continue;
    const double g = gradients[i] * clip;
    state.p[i] *= 1 - learning_rate[i] * weight_decay[i];
    state.m[i] = rates.beta1 * state.m[i] + (1 - rates.beta1) * g;
    state.v[i] = rates.beta2 * state.v[i] + (1 - rates.beta2) * g * g;
    const double step_size = learning_rate[i] / (1 - std::pow(rates.beta1, t));
    const double denominator =
        std::sqrt(state.v[i]) / std::sqrt(1 - std::pow(rates.beta2, t)) + rates.epsilon;
    state.p[i] -= step_size * state.m[i] / denominator;
  }
}

}  // namespace maxim_tests

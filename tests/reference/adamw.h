// torch.optim.AdamW after torch.nn.utils.clip_grad_norm_, in plain double loops.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

struct AdamWState {
  std::vector<double> p, m, v;
  int64_t step = 0;
};

struct AdamWRates {
  double beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  double max_grad_norm = 1;  // 0: not clipped
};

// One step; learning_rate and weight_decay of each element, 0 and 0 where it belongs to no group.
void adamw_step(AdamWState& state, const std::vector<double>& gradients,
                const std::vector<double>& learning_rate, const std::vector<double>& weight_decay,
                const AdamWRates& rates);

}  // namespace maxim_tests

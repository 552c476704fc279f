// AdamW over the flat parameter buffer: moments, groups of equal rates, the step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "model/parameters.h"

namespace maxim {

struct OptimizerSettings {
  float learning_rate = 5e-5f;
  float weight_decay = 0;  // of matrices; biases and LayerNorm never decay
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float max_grad_norm = 1;  // 0: no clipping
  // Rates by parameter name: the first regular expression (ECMAScript, searched for anywhere in the
  // name) that matches wins.
  std::vector<std::pair<std::string, float>> learning_rate_mapping;
};

class Optimizer {
 public:
  // `loss_scale`: as AdamW's; absent or f32 [2], kept up to date by step(). Throws InputError for a
  // broken expression and for one that matches no parameter.
  Optimizer(Ops& ops, Parameters& parameters, const OptimizerSettings& settings,
            const Tensor& loss_scale = {});

  void zero_gradients();
  // Updates all parameters with their rate times `factor`, from gradients that are summed over the
  // ranks already. gradient_square_sum [1] receives the squared norm. A step whose norm is not
  // finite changes nothing and is counted.
  void step(double factor, const Tensor& gradient_square_sum);
  int64_t skipped_steps() const;  // waits for the device

 private:
  Ops& ops_;
  Parameters& parameters_;
  OptimizerSettings settings_;
  std::vector<AdamWGroup> groups_, scaled_;
  Tensor loss_scale_;
  DeviceTensor m_, v_, counters_;
};

}  // namespace maxim

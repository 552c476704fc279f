// AdamW over the flat parameter buffer: moments, groups of equal rates, the step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/gradient_reducer.h"
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
  // Updates the parameters in `ranges` (ascending; ends and lengths multiples of 4), and has the
  // moments of these only. `loss_scale`: as AdamW's; absent or f32 [2], kept up to date by step().
  // Throws InputError for a broken expression and for one that matches no parameter.
  Optimizer(Ops& ops, Parameters& parameters, const OptimizerSettings& settings,
            const std::vector<GradientReducer::Range>& ranges, const Tensor& loss_scale = {});

  void zero_gradients();
  // Updates the parameters with their rate times `factor`, from gradients that are summed over the
  // ranks already and whose square_sums [n] add up to their squared norm, which
  // gradient_square_sum [1] receives. A step whose norm is not finite changes nothing and is
  // counted. A 16-bit copy of all parameters is renewed by it when the ranges are all of them.
  void step(double factor, const Tensor& gradient_square_sum, const Tensor& square_sums);
  int64_t skipped_steps() const;  // waits for the device
  int64_t state_bytes() const { return m_.view().bytes() + v_.view().bytes(); }

 private:
  Ops& ops_;
  Parameters& parameters_;
  OptimizerSettings settings_;
  std::vector<AdamWGroup> groups_;
  bool whole_;  // all parameters are updated here
  std::vector<AdamWGroup> scaled_;
  Tensor loss_scale_;
  DeviceTensor m_, v_, counters_;
};

}  // namespace maxim

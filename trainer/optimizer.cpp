#include "trainer/optimizer.h"

#include <algorithm>
#include <regex>

namespace maxim {
namespace {

std::vector<std::regex> compile(const OptimizerSettings& settings) {
  std::vector<std::regex> expressions;
  for (const auto& [pattern, rate] : settings.learning_rate_mapping) {
    try {
      expressions.emplace_back(pattern);
    } catch (const std::regex_error& e) {
      fail_input("--learning_rate_mapping: '{}' is not a regular expression: {}", pattern,
                 e.what());
    }
  }
  return expressions;
}

// One group a run of parameters with equal rates. A group reaches over the gaps between its
// tensors, which are zero and stay so.
std::vector<AdamWGroup> make_groups(const Parameters& parameters,
                                    const OptimizerSettings& settings) {
  const std::vector<std::regex> expressions = compile(settings);
  std::vector<bool> used(expressions.size(), false);
  std::vector<AdamWGroup> groups;
  for (const Parameter& parameter : parameters.list()) {
    AdamWGroup group{parameter.offset, parameter.offset + parameter.size(), settings.learning_rate,
                     parameter.decays ? settings.weight_decay : 0.0f};
    for (size_t i = 0; i < expressions.size(); ++i) {
      if (!std::regex_search(parameter.name, expressions[i])) continue;
      used[i] = true;
      group.learning_rate = settings.learning_rate_mapping[i].second;
      break;
    }
    if (!groups.empty() && groups.back().learning_rate == group.learning_rate &&
        groups.back().weight_decay == group.weight_decay)
      groups.back().end = group.end;
    else
      groups.push_back(group);
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      fail_input(
          "--learning_rate_mapping: '{}' decides the rate of no parameter (names are like {} and "
          "{})",
          settings.learning_rate_mapping[i].first, parameters.list().front().name,
          parameters.list().back().name);
  return groups;
}

// The parts of `groups` that lie in `ranges`; the moments of the ranges lie end to end.
std::vector<AdamWGroup> groups_within(const std::vector<GradientReducer::Range>& ranges,
                                      const std::vector<AdamWGroup>& groups) {
  std::vector<AdamWGroup> inside;
  int64_t state = 0;
  for (const GradientReducer::Range& range : ranges) {
    for (AdamWGroup group : groups) {
      group.begin = std::max(group.begin, range.begin);
      group.end = std::min(group.end, range.end);
      group.state_shift = state - range.begin;
      if (group.begin < group.end) inside.push_back(group);
    }
    state += range.end - range.begin;
  }
  return inside;
}

int64_t elements_of(const std::vector<GradientReducer::Range>& ranges) {
  int64_t elements = 0;
  for (const GradientReducer::Range& range : ranges) elements += range.end - range.begin;
  return elements;
}

}  // namespace

Optimizer::Optimizer(Ops& ops, Parameters& parameters, const OptimizerSettings& settings,
                     const std::vector<GradientReducer::Range>& ranges, const Tensor& loss_scale)
    : ops_(ops),
      parameters_(parameters),
      settings_(settings),
      groups_(groups_within(ranges, make_groups(parameters, settings))),
      whole_(elements_of(ranges) == parameters.values().size()),
      scaled_(groups_),
      loss_scale_(loss_scale),
      m_(ops.device(), DType::f32, elements_of(ranges), "first moments"),
      v_(ops.device(), DType::f32, elements_of(ranges), "second moments"),
      counters_(ops.device(), DType::i64, 2, "optimizer counters") {
  for (const DeviceTensor* tensor : {&m_, &v_, &counters_}) ops.device().zero(tensor->view());
}

void Optimizer::zero_gradients() { ops_.device().zero(parameters_.gradients()); }

void Optimizer::step(double factor, const Tensor& gradient_square_sum, const Tensor& square_sums) {
  for (size_t i = 0; i < groups_.size(); ++i)
    scaled_[i].learning_rate = static_cast<float>(groups_[i].learning_rate * factor);
  ops_.adamw({.parameters = parameters_.values(),
              .gradients = parameters_.gradients(),
              .m = m_.view(),
              .v = v_.view(),
              .square_sums = square_sums,
              .gradient_square_sum = gradient_square_sum,
              .counters = counters_.view(),
              .groups = scaled_.data(),
              .group_count = static_cast<int64_t>(scaled_.size()),
              .copy = whole_ ? parameters_.copy() : Tensor(),
              .loss_scale = loss_scale_,
              .beta1 = settings_.beta1,
              .beta2 = settings_.beta2,
              .epsilon = settings_.epsilon,
              .max_grad_norm = settings_.max_grad_norm});
}

int64_t Optimizer::skipped_steps() const {
  int64_t counters[2];
  ops_.device().copy_out(counters, counters_.view());
  return counters[1];
}

}  // namespace maxim

// Cross-entropy in plain double loops.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

struct CrossEntropy {
  double loss;  // summed over rows, times scale
  std::vector<double> d_scores;
};
CrossEntropy cross_entropy(const std::vector<double>& scores, const std::vector<int32_t>& targets,
                           double temperature, double scale);

}  // namespace maxim_tests

#include "tests/reference/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace maxim_tests {

CrossEntropy cross_entropy(const std::vector<double>& scores, const std::vector<int32_t>& targets,
                           double temperature, double scale) {
  CrossEntropy c{0, std::vector<double>(scores.size())};
  const size_t columns = targets.empty() ? 0 : scores.size() / targets.size();
  for (size_t i = 0; i < targets.size(); ++i) {
    const double* row = &scores[i * columns];
    const double most = *std::max_element(row, row + columns);
    double sum = 0;
    for (size_t j = 0; j < columns; ++j) sum += std::exp((row[j] - most) / temperature);
    c.loss += scale * (std::log(sum) - (row[targets[i]] - most) / temperature);
    for (size_t j = 0; j < columns; ++j) {
      const double p = std::exp((row[j] - most) / temperature) / sum;
      const double target = static_cast<int32_t>(j) == targets[i] ? 1 : 0;
      c.d_scores[i * columns + j] = scale / temperature * (p - target);
    }
  }
  return c;
}

}  // namespace maxim_tests

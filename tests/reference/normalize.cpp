#include "tests/reference/normalize.h"

#include <algorithm>
#include <cmath>

namespace maxim_tests {

Normalized normalize(const std::vector<double>& x, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(x.size()) / columns;
  Normalized r{std::vector<double>(x.size()), std::vector<double>(rows)};
  for (int64_t t = 0; t < rows; ++t) {
    double squares = 0;
    for (int64_t j = 0; j < columns; ++j) squares += x[t * columns + j] * x[t * columns + j];
    r.norm[t] = std::max(std::sqrt(squares), 1e-12);
    for (int64_t j = 0; j < columns; ++j) r.y[t * columns + j] = x[t * columns + j] / r.norm[t];
  }
  return r;
}

std::vector<double> normalize_gradient(const std::vector<double>& d_y, const std::vector<double>& x,
                                       int64_t columns) {
  const Normalized forward = normalize(x, columns);
  std::vector<double> d_x(x.size());
  for (size_t t = 0; t < forward.norm.size(); ++t) {
    double along = 0;
    for (int64_t j = 0; j < columns; ++j)
      along += forward.y[t * columns + j] * d_y[t * columns + j];
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t i = t * columns + j;
      d_x[i] = (d_y[i] - forward.y[i] * along) / forward.norm[t];
    }
  }
  return d_x;
}

}  // namespace maxim_tests

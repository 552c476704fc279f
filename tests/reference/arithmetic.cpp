#include "tests/reference/arithmetic.h"

#include <cstddef>

namespace maxim_tests {

std::vector<double> to_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

std::vector<float> to_float(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

std::vector<double> column_sums(const std::vector<double>& x, int64_t columns) {
  std::vector<double> sums(columns);
  for (size_t i = 0; i < x.size(); ++i) sums[i % columns] += x[i];
  return sums;
}

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> r(a.size());
  for (size_t i = 0; i < a.size(); ++i) r[i] = a[i] * b[i];
  return r;
}

std::vector<double> sum(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> r(a.size());
  for (size_t i = 0; i < a.size(); ++i) r[i] = a[i] + b[i];
  return r;
}

double weighted_sum(const std::vector<double>& w, const std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < w.size(); ++i) sum += w[i] * y[i];
  return sum;
}

}  // namespace maxim_tests

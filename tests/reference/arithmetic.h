// Vectors of numbers, element by element.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

std::vector<double> to_double(const std::vector<float>& values);
std::vector<float> to_float(const std::vector<double>& values);

// out[j] = sum over rows of x[·, j]
std::vector<double> column_sums(const std::vector<double>& x, int64_t columns);
// a * b, element by element
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b);
std::vector<double> sum(const std::vector<double>& a, const std::vector<double>& b);

// The sum of w[i] y[i]: a scalar loss whose gradient with respect to y is w.
double weighted_sum(const std::vector<double>& w, const std::vector<double>& y);

}  // namespace maxim_tests

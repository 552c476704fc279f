// Gradients by central differences of a double-precision function, to hold a backward pass against
// nothing but its own forward formula.
#pragma once

#include <functional>
#include <vector>

namespace maxim_tests {

// (f(x + h e_i) - f(x - h e_i)) / 2h for every i. With h = 1e-5 and third derivatives near 1 the
// truncation error is near 1e-11, the rounding error near 1e-16 |f| / h.
std::vector<double> central_differences(const std::function<double(const std::vector<double>&)>& f,
                                        std::vector<double> x, double h = 1e-5);

}  // namespace maxim_tests

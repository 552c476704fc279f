// Rows scaled to length 1, in plain double loops.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

struct Normalized {
  std::vector<double> y, norm;
};
Normalized normalize(const std::vector<double>& x, int64_t columns);

// Of rows longer than 1e-12.
std::vector<double> normalize_gradient(const std::vector<double>& d_y, const std::vector<double>& x,
                                       int64_t columns);

}  // namespace maxim_tests

// c = a b (+ bias), or c += a b, in plain double loops.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

struct GemmCase {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
};

// a [m, k] or [k, m], b [k, n] or [n, k], start [m, n]: what the products are added to.
std::vector<double> gemm(const GemmCase& shape, const std::vector<double>& a,
                         const std::vector<double>& b, const std::vector<double>& start);

}  // namespace maxim_tests

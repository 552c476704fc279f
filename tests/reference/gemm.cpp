#include "tests/reference/gemm.h"

namespace maxim_tests {

std::vector<double> gemm(const GemmCase& s, const std::vector<double>& a,
                         const std::vector<double>& b, const std::vector<double>& start) {
  std::vector<double> c = start;
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t l = 0; l < s.k; ++l) {
      const double factor = s.transpose_a ? a[l * s.m + i] : a[i * s.k + l];
      for (int64_t j = 0; j < s.n; ++j)
        c[i * s.n + j] += factor * (s.transpose_b ? b[j * s.k + l] : b[l * s.n + j]);
    }
  return c;
}

}  // namespace maxim_tests

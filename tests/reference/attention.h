// Multi-head attention over packed sequences in plain double loops.
#pragma once

#include <functional>
#include <vector>

#include "kernels/ops.h"
#include "tests/reference/ragged.h"

namespace maxim_tests {

struct Attention {
  std::vector<double> out, log_sum_exp;  // [T, H], [T, A]
};
// What becomes of each intermediate result (scores, probabilities, d_p, d_s) and of the final ones.
// With rounding to a 16-bit type this is the plain computation in that type, sums apart; the
// gradient's delta = d_out . out is of the rounded out, which is all that a backward pass is given.
using Rounding = std::function<double(double)>;
inline double exact(double x) { return x; }

Attention attention(const std::vector<double>& qkv, const Ragged& sequences, int64_t heads,
                    int64_t width, const maxim::Dropout& dropout, const Rounding& round = exact);

// d_qkv [T, 3H]
std::vector<double> attention_gradient(const std::vector<double>& d_out,
                                       const std::vector<double>& qkv, const Ragged& sequences,
                                       int64_t heads, int64_t width, const maxim::Dropout& dropout,
                                       const Rounding& round = exact);

}  // namespace maxim_tests

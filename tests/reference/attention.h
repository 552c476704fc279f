// Multi-head attention over packed sequences in plain double loops.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "tests/reference/ragged.h"

namespace maxim_tests {

struct Attention {
  std::vector<double> out, log_sum_exp;  // [T, H], [T, A]
};
Attention attention(const std::vector<double>& qkv, const Ragged& sequences, int64_t heads,
                    int64_t width, const maxim::Dropout& dropout);

// d_qkv [T, 3H]
std::vector<double> attention_gradient(const std::vector<double>& d_out,
                                       const std::vector<double>& qkv, const Ragged& sequences,
                                       int64_t heads, int64_t width, const maxim::Dropout& dropout);

}  // namespace maxim_tests

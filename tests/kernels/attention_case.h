// A batch for tests of attention, and its way through a backend.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "tests/kernels/backends.h"
#include "tests/reference/ragged.h"

namespace maxim_tests {

struct AttentionCase {
  Ragged rows;
  int64_t heads, width;
  maxim::Dropout dropout;
  std::vector<float> qkv, d_out;
  maxim::DType type = maxim::DType::f32;  // of the activations

  // Random qkv in [-scale, scale), d_out in [-1, 1). `expansion` rows of each sequence are not
  // keys, as far as one key is left.
  AttentionCase(const std::vector<int32_t>& lengths, int64_t heads, int64_t width,
                float probability = 0, int32_t expansion = 0, float scale = 1);
  // The same activations rounded to `type`.
  AttentionCase as(maxim::DType type) const;

  int64_t hidden() const { return heads * width; }
};

struct AttentionResults {
  std::vector<float> out, log_sum_exp, d_qkv;
};

// Forward, then backward.
AttentionResults run(Backend& backend, const AttentionCase& c);

}  // namespace maxim_tests

// The 16-bit float types on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tensor.h"

namespace maxim_tests {

// Nearest numbers of bf16 or f16 (ties to even), as bits; and the numbers that bits stand for.
std::vector<uint16_t> to_16_bits(maxim::DType type, const std::vector<float>& values);
std::vector<float> from_16_bits(maxim::DType type, const std::vector<uint16_t>& bits);

// Nearest numbers of any float type; f32 values stay.
std::vector<float> rounded(maxim::DType type, const std::vector<float>& values);

// The largest relative error of one rounding to a float type.
double roundoff(maxim::DType type);

}  // namespace maxim_tests

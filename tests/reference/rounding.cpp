#include "tests/reference/rounding.h"

#include <bit>
#include <cmath>

namespace maxim_tests {
namespace {

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7FFF;
  // Half of the last place that stays, less one unless that place is odd.
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace

std::vector<uint16_t> to_16_bits(maxim::DType type, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float v : values)
    bits.push_back(type == maxim::DType::bf16 ? to_bf16(v)
                                              : std::bit_cast<uint16_t>(static_cast<_Float16>(v)));
  return bits;
}

std::vector<float> from_16_bits(maxim::DType type, const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t b : bits)
    values.push_back(type == maxim::DType::bf16
                         ? std::bit_cast<float>(static_cast<uint32_t>(b) << 16)
                         : static_cast<float>(std::bit_cast<_Float16>(b)));
  return values;
}

std::vector<float> rounded(maxim::DType type, const std::vector<float>& values) {
  return type == maxim::DType::f32 ? values : from_16_bits(type, to_16_bits(type, values));
}

double roundoff(maxim::DType type) {
  // 24, 8 and 11 bits of significand, the first of them not stored.
  return std::ldexp(1.0, type == maxim::DType::f32 ? -24 : type == maxim::DType::bf16 ? -8 : -11);
}

}  // namespace maxim_tests

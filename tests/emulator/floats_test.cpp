// The 16-bit float types against their definitions, for every bit pattern.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/catch.h"

namespace maxim_tests {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value that IEEE 754 gives to a pattern with so many bits of mantissa and exponent.
double defined_value(unsigned bits, int mantissa_bits, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// The first pattern whose value is not the defined one, or -1.
template <class ToFloat>
int first_wrong_value(ToFloat to_float, int mantissa_bits, int exponent_bits) {
  for (int bits = 0; bits < 65536; ++bits) {
    const double right = defined_value(bits, mantissa_bits, exponent_bits);
    const float value = to_float(static_cast<uint16_t>(bits));
    const bool same = std::isnan(right) ? std::isnan(value)
                                        : value == right && std::signbit(value) == (bits >> 15);
    if (!same) return bits;
  }
  return -1;
}

// The first finite pattern at which rounding is wrong, or -1: each value comes back, what lies
// between two neighbours goes to the nearer one, and the middle to the one whose last bit is 0.
// Beyond the largest finite value lies infinity, at the distance of one more step.
template <class ToBits>
int first_wrong_rounding(ToBits to_bits, int mantissa_bits, int exponent_bits) {
  const int infinity = 0x8000 - (1 << mantissa_bits);
  const auto value = [&](int bits) {
    return bits < infinity ? defined_value(bits, mantissa_bits, exponent_bits)
                           : 2 * defined_value(bits - 1, mantissa_bits, exponent_bits) -
                                 defined_value(bits - 2, mantissa_bits, exponent_bits);
  };
  for (int sign : {0, 0x8000})
    for (int bits = 0; bits < infinity; ++bits) {
      const float factor = sign != 0 ? -1 : 1;
      const auto middle = static_cast<float>((value(bits) + value(bits + 1)) / 2);
      const float below = std::nextafter(middle, 0.f), above = std::nextafter(middle, kInfinity);
      const bool right = to_bits(factor * static_cast<float>(value(bits))) == (bits | sign) &&
                         to_bits(factor * below) == (bits | sign) &&
                         to_bits(factor * above) == ((bits + 1) | sign) &&
                         to_bits(factor * middle) == ((bits + bits % 2) | sign);
      if (!right) return bits | sign;
    }
  return -1;
}

}  // namespace

TEST_CASE("every half and bfloat16 has its defined value") {
  REQUIRE(first_wrong_value(maxim_emulated::half_to_float, 10, 5) == -1);
  REQUIRE(first_wrong_value(maxim_emulated::bf16_to_float, 7, 8) == -1);
}

TEST_CASE("floats round to the nearest half and bfloat16, ties to even, also at the ends") {
  REQUIRE(first_wrong_rounding(maxim_emulated::float_to_half, 10, 5) == -1);
  REQUIRE(first_wrong_rounding(maxim_emulated::float_to_bf16, 7, 8) == -1);
  REQUIRE(__half_as_ushort(__float2half(65519.996f)) == 0x7bff);
  REQUIRE(__half_as_ushort(__float2half(65520.f)) == 0x7c00);
  REQUIRE(__half_as_ushort(__float2half(-kInfinity)) == 0xfc00);
  REQUIRE(__bfloat16_as_ushort(__float2bfloat16(std::numeric_limits<float>::max())) == 0x7f80);
  REQUIRE(__bfloat16_as_ushort(__float2bfloat16(-kInfinity)) == 0xff80);
}

TEST_CASE("every NaN becomes CUDA's NaN") {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    REQUIRE(__half_as_ushort(__float2half(std::bit_cast<float>(bits))) == 0x7fff);
    REQUIRE(__bfloat16_as_ushort(__float2bfloat16(std::bit_cast<float>(bits))) == 0x7fff);
  }
}

TEST_CASE("pairs keep their order") {
  const float2 halves = __half22float2(__floats2half2_rn(1, -2));
  REQUIRE((halves.x == 1 && halves.y == -2));
  const float2 bfloats = __bfloat1622float2(__floats2bfloat162_rn(1, -2));
  REQUIRE((bfloats.x == 1 && bfloats.y == -2));
  REQUIRE(std::bit_cast<uint32_t>(__floats2half2_rn(1, -2)) == 0xc0003c00);
  REQUIRE(std::bit_cast<uint32_t>(__floats2bfloat162_rn(1, -2)) == 0xc0003f80);
}

}  // namespace maxim_tests

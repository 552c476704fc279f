// IEEE half precision with CUDA's names. Conversions only, and explicit ones: arithmetic is fp32's.
#pragma once

#include <bit>
#include <cstdint>

#include "emulated/vector_types.h"

namespace maxim_emulated {

// Exact. The exponent moves by 127 - 15; subnormals are normalised by a float subtraction.
inline float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} >> 15 << 31, magnitude = uint32_t{bits & 0x7fffu} << 13;
  if (magnitude >= 0x7c00u << 13) return std::bit_cast<float>(sign | 0x7f800000 | magnitude);
  if (magnitude >= 0x0400u << 13) return std::bit_cast<float>(sign | (magnitude + (112u << 23)));
  const float scaled = std::bit_cast<float>(magnitude | 113u << 23) - 0x1p-14f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

// To the nearest, ties to even; from 65,520 on: infinity; every NaN becomes 0x7FFF.
inline uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 31 << 15, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= std::bit_cast<uint32_t>(65536.f)) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < std::bit_cast<uint32_t>(0x1p-14f)) {
    // Added to 1/2, whose last bit is worth 2^-24, a subnormal half's, the float unit rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

}  // namespace maxim_emulated

struct __half {
  unsigned short bits;
  __half() = default;
  explicit __half(float value) : bits(maxim_emulated::float_to_half(value)) {}
  explicit operator float() const { return maxim_emulated::half_to_float(bits); }
};
struct alignas(4) __half2 {
  __half x, y;
};
typedef __half half;
typedef __half2 half2;

inline __half __float2half(float value) { return __half(value); }
inline __half __float2half_rn(float value) { return __half(value); }
inline float __half2float(__half value) { return static_cast<float>(value); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
inline __half2 __float2half2_rn(float v) { return __floats2half2_rn(v, v); }
inline float2 __half22float2(__half2 v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y)};
}
inline float __low2float(__half2 v) { return static_cast<float>(v.x); }
inline float __high2float(__half2 v) { return static_cast<float>(v.y); }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) { return std::bit_cast<__half>(bits); }

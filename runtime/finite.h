// Whether floats are numbers.
#pragma once

#include <cstdint>
#include <cstring>

namespace maxim {

// Whether none of `count` floats at `values`, of any alignment, is NaN or infinite. One branchless
// pass: 22 M weights take some 10 ms.
inline bool all_finite(const void* values, int64_t count) {
  uint32_t largest = 0;  // exponent of all; NaN and infinity have all eight bits set
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, static_cast<const char*>(values) + 4 * i, 4);
    const uint32_t exponent = bits & 0x7F800000u;
    largest = exponent > largest ? exponent : largest;
  }
  return largest != 0x7F800000u;
}

}  // namespace maxim

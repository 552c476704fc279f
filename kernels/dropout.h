// The counter of every dropout decision, shared by all backends: Philox as a pure function of
// (seed, step, row of the global batch, column, position, site, element), so a mask does not depend
// on the rank, the packing, the chunking or the backend. One draw of 128 bits decides 8
// neighbouring elements, 16 bits each: element e of a group is the low (even e) or high (odd e)
// half of word e / 2.
#pragma once

#include <cmath>

#include "kernels/ops.h"
#include "runtime/philox.h"

namespace maxim {

constexpr int kDropoutGroup = 8;

// Kept when the 16 bits are >= this.
inline uint32_t dropout_threshold(float probability) {
  return static_cast<uint32_t>(std::lround(static_cast<double>(probability) * 65536.0));
}
inline float dropout_scale(float probability) {
  return static_cast<float>(65536.0 / (65536.0 - dropout_threshold(probability)));
}

// `element_group`: hidden layers: column / 8; attention: head << 16 | key / 8, with `position` the
// query's.
MAXIM_HOST_DEVICE inline Philox4 dropout_bits(uint64_t seed, uint32_t step, uint32_t site,
                                              uint32_t row, uint32_t column, uint32_t position,
                                              uint32_t element_group) {
  return philox(element_group, position | site << 16, row, step, static_cast<uint32_t>(seed),
                static_cast<uint32_t>(seed >> 32) ^ column);
}

MAXIM_HOST_DEVICE inline uint32_t dropout_bits_of(const Philox4& bits, int element) {
  return bits.x[element / 2] >> (16 * (element & 1)) & 0xFFFFu;
}

}  // namespace maxim

// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3" (SC 2011): 128 random bits as a pure function of a 128-bit counter
// and a 64-bit key. Every random number in Maxim is drawn here, so none depends on rank, thread or
// time.
#pragma once

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define MAXIM_HOST_DEVICE __host__ __device__
#else
#define MAXIM_HOST_DEVICE
#endif

namespace maxim {

struct Philox4 {
  uint32_t x[4];
};

MAXIM_HOST_DEVICE inline Philox4 philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                        uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;  // the golden ratio and sqrt(3) - 1, as in the paper
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// A uniform number in [0, 1) with 24 bits from one 32-bit word.
MAXIM_HOST_DEVICE inline float uniform(uint32_t word) { return (word >> 8) * (1.0f / 16777216.0f); }

}  // namespace maxim

// Vectors of floats as wide as the instruction set of the build, and the functions of the model on
// them: exp, the normal distribution (gelu), dropout. GCC's vector extensions, so the same text is
// AVX-512, AVX2 or SSE; products and sums contract to fused multiply-adds where there are any.
//
// Accuracy against double precision, measured over all floats by
// tests/kernels/vector_math_test.cpp:
//   exp              relative error below 1.2e-7 (1 ulp); below e^-87.3 the result is 0
//   normal           absolute errors below 3e-7 (cdf) and 6e-8 (density); x * cdf, which is gelu,
//                   below 2e-7 * max(1, |x|)
// Both use own minimax polynomials (Remez exchange in 40 digits).
//
// Every reduction over lanes has one order, so results do not depend on threads or alignment.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "kernels/dropout.h"

namespace maxim {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint64_t LongWords __attribute__((vector_size(4 * kLanes)));  // half as many lanes

inline Floats broadcast(float x) { return Floats{} + x; }

inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }

// How a loop body touches memory: a whole vector, or the first `count` < kLanes elements of the
// last one, whose other lanes load as 0 and are not stored.
struct WholeVector {
  Floats load(const float* p) const { return maxim::load(p); }
  void store(float* p, Floats v) const { maxim::store(p, v); }
  Floats keep(Floats v) const { return v; }
};
struct PartVector {
  int64_t count;
  Floats load(const float* p) const {
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
    return maxim::load(lanes);
  }
  void store(float* p, Floats v) const {
    float lanes[kLanes];
    maxim::store(lanes, v);
    for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
  }
  // v with 0 in the lanes that are not there, for sums.
  Floats keep(Floats v) const {
    float lanes[kLanes];
    maxim::store(lanes, v);
    return load(lanes);
  }
};

// body(i, vector) for i = 0, kLanes, … < size with a WholeVector, at the end perhaps a PartVector.
template <class Body>
inline void for_each_vector(int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, WholeVector{});
  if (i < size) body(i, PartVector{size - i});
}

inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }
inline Floats minimum(Floats a, Floats b) { return a < b ? a : b; }

inline Floats square_root(Floats x) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  return (Floats)_mm512_maskz_sqrt_ps(0xFFFF, (__m512)x);
#elif defined(__AVX2__)
  return (Floats)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
  return (Floats)_mm_sqrt_ps((__m128)x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Sum (in T) and maximum over the lanes, halving the vector each time.
template <class T = float>
T sum_of_lanes(Floats v) {
  T lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = v[i];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}
inline float max_of_lanes(Floats v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}

// e^x = 2^n e^r with n = round(x / ln 2): e^r = 1 + r + r^2 q(r) on |r| <= ln 2 / 2, then n is
// added to the exponent. Infinity above 88.72, 0 below -87.33 (no denormals), NaN stays NaN.
inline Floats exp(Floats x) {
  const float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's low mantissa bits are the integer
  const Floats shifted = x * 1.44269504f + kRound;
  const Floats n = shifted - kRound;
  // ln 2 in two parts; the first has 15 bits, so that n * it is exact without fused multiply-adds.
  const Floats r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  Floats q = r * 0.00131677600607f + 0.00835346457002f;
  q = q * r + 0.0416763384331f;
  q = q * r + 0.166667101278f;
  q = q * r + 0.499999920152f;
  const Floats e = (q * r) * r + r + 1.0f;
  const Floats scaled = (Floats)((Words)e + ((Words)shifted << 23));
  const Floats large = x <= 88.72283f ? scaled : x + __builtin_inff();
  return x < -87.33654f ? Floats{} : large;
}

// phi(x) = e^(-x^2/2) / sqrt(2 pi) and Phi(x) = (1 + erf(x / sqrt 2)) / 2 of one exponential:
// Phi(-u) = e^(-u^2/2) R(u) for u >= 0, R a polynomial of degree 6 in 1 / (1 + 0.28 u).
struct Normal {
  Floats density, cdf;
};
inline Normal normal(Floats x) {
  const Floats u = x < 0.0f ? -x : x;
  const Floats e = exp(x * x * -0.5f);
  const Floats t = 1.0f / (u * 0.28f + 1.0f);
  Floats r = t * -0.105811095756f + 0.389886108867f;
  r = r * t - 0.237013870884f;
  r = r * t + 0.268927259834f;
  r = r * t + 0.0674896293608f;
  r = r * t + 0.116521959301f;
  const Floats tail = e * (r * t);
  return {e * 0.398942280f, x < 0.0f ? tail : 1.0f - tail};
}

// Dropout ------------------------------------------------------------------------------------

// Groups of 8 elements whose bits are drawn at a time, and the elements that makes.
constexpr int kDropoutGroups = kLanes / 2;
constexpr int kDropoutChunk = kDropoutGroups * kDropoutGroup;

// The low words of `a` times `b`, as 64-bit products.
inline LongWords multiply_low_words(LongWords a, LongWords b) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  // Not _mm512_mul_epu32: g++ 12 warns of an uninitialised variable in its own header.
  return (LongWords)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (LongWords)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (LongWords)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

// Ten rounds of Philox (runtime/philox.h) in every 64-bit lane: counters and results are the low
// words; the upper halves are garbage that a multiplication of low words does not see.
struct PhiloxLanes {
  LongWords c0, c1, c2, c3;
};
inline PhiloxLanes philox_lanes(PhiloxLanes c, uint32_t k0, uint32_t k1) {
  const LongWords zero = {}, multiplier0 = zero + 0xD2511F53u, multiplier2 = zero + 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const LongWords p0 = multiply_low_words(c.c0, multiplier0);
    const LongWords p1 = multiply_low_words(c.c2, multiplier2);
    c.c0 = (p1 >> 32) ^ c.c1 ^ (zero + k0);
    c.c2 = (p0 >> 32) ^ c.c3 ^ (zero + k1);
    c.c1 = p1;
    c.c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The 16 random bits of elements [0, count) of a row: bits[i] = dropout_bits_of(dropout_bits(seed,
// step, site, row, column, position, first_group + i / 8), i % 8), the counter of
// kernels/dropout.h. `bits` has room for count rounded up to kDropoutChunk. About 1.3 instructions
// an element.
inline void draw_dropout_bits(uint16_t* bits, int64_t count, const Dropout& dropout, uint32_t row,
                              uint32_t column, uint32_t position, uint32_t first_group = 0) {
  const LongWords zero = {};
  LongWords lane;
  for (int i = 0; i < kDropoutGroups; ++i) lane[i] = i;
  for (int64_t begin = 0; begin < count; begin += kDropoutChunk) {
    const auto [c0, c1, c2, c3] = philox_lanes(
        {lane + (first_group + static_cast<uint32_t>(begin / kDropoutGroup)),
         zero + (position | dropout.site << 16), zero + row, zero + dropout.step},
        static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32) ^ column);
    const LongWords low = (c0 & 0xFFFFFFFFu) | c1 << 32;
    const LongWords high = (c2 & 0xFFFFFFFFu) | c3 << 32;
    // Lane i of both is group i: interleave them.
    const LongWords first = __builtin_shuffle(low, high, lane / 2 + lane % 2 * kDropoutGroups);
    const LongWords second =
        __builtin_shuffle(low, high, (lane + kDropoutGroups) / 2 + lane % 2 * kDropoutGroups);
    std::memcpy(bits + begin, &first, sizeof first);
    std::memcpy(bits + begin + kDropoutChunk / 2, &second, sizeof second);
  }
}

// What dropout makes of kLanes neighbouring elements whose bits draw_dropout_bits drew.
class DropoutMask {
 public:
  explicit DropoutMask(float probability)
      : threshold_(Ints{} + static_cast<int32_t>(dropout_threshold(probability))),
        scale_(broadcast(dropout_scale(probability))) {}

  Floats apply(Floats x, const uint16_t* bits) const {
    return kept(bits) ? x * scale_ : Floats{};  // not x * 0: an infinity that is dropped is gone
  }
  // All bits set where the element is kept.
  Ints kept(const uint16_t* bits) const {
    typedef uint16_t HalfWords __attribute__((vector_size(2 * kLanes)));
    HalfWords b;
    std::memcpy(&b, bits, sizeof b);
    return __builtin_convertvector(b, Ints) >= threshold_;
  }
  Floats scale() const { return scale_; }

 private:
  Ints threshold_;
  Floats scale_;
};

}  // namespace maxim

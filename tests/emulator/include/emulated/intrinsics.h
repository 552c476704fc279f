// CUDA's arithmetic and bit functions, and atomics on integers. The approximate ones (__expf, …)
// are exact here; the sizes of their errors on a GPU are the tests' business.
#pragma once

#include <math.h>  // CUDA has the names of <cmath> in the global namespace

#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }

inline unsigned __umulhi(unsigned x, unsigned y) { return uint64_t{x} * y >> 32; }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline long min(long a, long b) { return a < b ? a : b; }
inline unsigned long min(unsigned long a, unsigned long b) { return a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
inline float max(float a, float b) { return std::fmax(a, b); }

// Loads and stores with a hint to the caches, which has no meaning here.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

namespace maxim_emulated {

// The types of CUDA's integer atomics. There are none on floats: their order is not fixed.
template <class T>
concept AtomicInteger =
    std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;

// Replaces *address by update(*address); returns what was there before.
template <class T, class Update>
T atomic_update(T* address, Update update) {
  const std::atomic_ref<T> cell(*address);
  T before = cell.load();
  while (!cell.compare_exchange_weak(before, update(before))) {
  }
  return before;
}

}  // namespace maxim_emulated

template <maxim_emulated::AtomicInteger T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}
template <maxim_emulated::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_or(value);
}
template <maxim_emulated::AtomicInteger T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value);
}
template <maxim_emulated::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return maxim_emulated::atomic_update(address, [=](T old) { return old < value ? value : old; });
}
template <maxim_emulated::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return maxim_emulated::atomic_update(address, [=](T old) { return value < old ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned most) {
  return maxim_emulated::atomic_update(address,
                                       [=](unsigned old) { return old >= most ? 0 : old + 1; });
}
template <maxim_emulated::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, desired);
  return expected;
}

// What the row-wise kernels share: who owns which columns of a row, rows in registers, and the
// choice between 128-bit and single accesses.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/checks.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_plans.h"

namespace maxim {

template <int N>
constexpr int kLaneColumns = lane_columns(N);
template <int N>
constexpr int kWarpColumns = warp_columns(N);

// The lanes that share a row of up to most_row_columns(): a warp, or a block for a long row, each
// of whose warps has kWarpColumns neighbouring columns. A lane has packs of N neighbouring columns,
// every 32nd, so that a warp's access is one piece of memory and a lane's packs are at fixed
// distances; it keeps kLaneColumns<N> values, `values[i * N + e]` is element e of pack i.
template <int N>
struct RowLanes {
  int columns;
  int first;          // column of pack 0
  int group, groups;  // of those who have a row of their own
  int lanes;

  __device__ __forceinline__ explicit RowLanes(int columns_) : columns(columns_) {
    const bool one_warp = columns <= kWarpColumns<N>;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    first = lane * N + (one_warp ? 0 : warp * kWarpColumns<N>);
    group = one_warp ? warp : 0;
    groups = one_warp ? kRowWarps : 1;
    lanes = kRowThreads / groups;
  }

  // The row of this group where every group of the grid has one.
  __device__ __forceinline__ int64_t row() const { return int64_t{blockIdx.x} * groups + group; }
  // f(i, column) for each pack i of this lane.
  template <class F>
  __device__ __forceinline__ void for_each_pack(F&& f) const {
#pragma unroll
    for (int i = 0; i < kLaneColumns<N> / N; ++i) {
      const int column = first + i * kWarp * N;
      if (column < columns) f(i, column);
    }
  }
  // Whether this lane writes what there is once a row.
  __device__ __forceinline__ bool is_first() const {
    return static_cast<int>(threadIdx.x) % lanes == 0;
  }
  // Sum over the row's lanes, in all of them. `scratch`: as block_sum's.
  __device__ __forceinline__ float sum(float x, float* scratch) const {
    return lanes == kWarp ? warp_sum(x) : block_sum(x, scratch);
  }
};

template <int N, class T>
__device__ __forceinline__ void load_pack(float* values, const T* p) {
  const auto pack = Pack<T, N>::load(p);
#pragma unroll
  for (int e = 0; e < N; ++e) values[e] = pack[e];
}
// To global memory.
template <int N, class T>
__device__ __forceinline__ void store_pack(T* p, const float* values) {
  Pack<T, N> pack;
#pragma unroll
  for (int e = 0; e < N; ++e) pack.set(e, values[e]);
#if defined(__CUDACC__)
  // A plain store loses its alignment in some loops and becomes four of 32 bits.
  if constexpr (sizeof(pack) % 16 == 0) {
    uint4 words[sizeof(pack) / 16];
    memcpy(words, &pack, sizeof(pack));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(pack) / 16); ++i)
      __stwb(reinterpret_cast<uint4*>(p) + i, words[i]);
    return;
  }
#endif
  pack.store(p);
}

// Neighbouring elements that move at once: as many as fill 16 bytes, if rows and pointers allow.
inline int pack_width(int64_t element, int64_t columns,
                      std::initializer_list<const void*> pointers) {
  const int64_t width = 16 / element;
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return 1;
  return columns % width == 0 ? static_cast<int>(width) : 1;
}

// Calls f(T{}, integral_constant<N>) with the element type of `dtype` and its pack_width().
template <class F>
void for_packs(DType dtype, int64_t columns, std::initializer_list<const void*> pointers, F&& f) {
  for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWide = 16 / sizeof(T);
    if (pack_width(sizeof(T), columns, pointers) == kWide)
      f(zero, std::integral_constant<int, kWide>{});
    else
      f(zero, std::integral_constant<int, 1>{});
  });
}

}  // namespace maxim

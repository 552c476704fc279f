// 16-bit tiles in shared memory and what tensor cores read from them.
//
// Results of mma m16n8k16: of the 16 rows a lane holds rows lane / 4 and lane / 4 + 8, of 8 columns
// the two from 2 (lane % 4): c[0], c[1] of the upper row, c[2], c[3] of the lower.
//
// Keys lie in shared memory in an order of their own: key 8 q + 2 t + b of 32 (q, t < 4, b < 2) in
// slot 8 t + 2 q + b. In four results side by side, which hold 32 slots, the columns of lane % 4 =
// q are then keys 8 q .. 8 q + 7: one group of dropout, whose bits one lane draws alone.
#pragma once

#include <cstring>

#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

namespace maxim {

constexpr int kChunk = 32;  // keys of four results side by side

// Slot of a key, and key of a slot: q and t exchanged.
__device__ __forceinline__ int key_slot(int i) {
  return (i & ~31) | (i >> 1 & 3) << 3 | (i >> 3 & 3) << 1 | (i & 1);
}

// Two elements in a register, the first in the lower half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float x, float y) {
  uint32_t bits;
  if constexpr (DTypeOf<T>::value == DType::bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    memcpy(&bits, &pair, sizeof bits);
  } else {
    const __half2 pair = __floats2half2_rn(x, y);
    memcpy(&bits, &pair, sizeof bits);
  }
  return bits;
}

template <class T>
__device__ __forceinline__ float2 unpack_pair(uint32_t bits) {
  Pack<T, 2> pair;
  memcpy(&pair, &bits, sizeof bits);
  return {pair[0], pair[1]};
}

// Rows of Width elements in pieces of 16 bytes. A row's pieces are permuted so that the 8 rows of
// an 8x8 matrix lie in different banks.
template <class T, int Width>
struct SharedTile {
  static constexpr int kPieces = Width / 8;
  static constexpr int kRowsALine = 8 / kPieces;  // of 128 bytes, all banks once

  T* data;

  __device__ __forceinline__ T* piece(int row, int piece) const {
    return data + row * Width + (piece ^ row / kRowsALine % kPieces) * 8;
  }

  // Operands: 16 x 16 elements from `row` and `column`. As A: A[m][k] = tile[m][k]; as B, for two
  // results side by side: B[k][n] = tile[k][n]. Transposed: A[m][k] = tile[k][m], B[k][n] =
  // tile[n][k].
  __device__ __forceinline__ void a(uint32_t (&r)[4], int row, int column) const {
    ldmatrix_x4(r, upper_half_first(row, column));
  }
  __device__ __forceinline__ void b(uint32_t (&r)[4], int row, int column) const {
    ldmatrix_x4_transposed(r, upper_half_first(row, column));
  }
  __device__ __forceinline__ void a_transposed(uint32_t (&r)[4], int row, int column) const {
    ldmatrix_x4_transposed(r, left_half_first(row, column));
  }
  __device__ __forceinline__ void b_transposed(uint32_t (&r)[4], int row, int column) const {
    ldmatrix_x4(r, left_half_first(row, column));
  }

 private:
  // Where the lane's 8 elements start when the four 8x8 matrices come column by column, or row by
  // row.
  __device__ __forceinline__ const T* upper_half_first(int row, int column) const {
    const int lane = threadIdx.x % kWarp;
    return piece(row + lane % 16, column / 8 + lane / 16);
  }
  __device__ __forceinline__ const T* left_half_first(int row, int column) const {
    const int lane = threadIdx.x % kWarp;
    return piece(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2);
  }
};

// The block starts to copy rows x[0 .. rows) that are `stride` elements apart into rows slot(row)
// of the tile, zeros up to `capacity`. A thread keeps to its piece of a row.
template <class T, int Width, class Slot>
__device__ __forceinline__ void copy_to_slots(SharedTile<T, Width> tile, int capacity, const T* x,
                                              int64_t stride, int rows, Slot slot) {
  constexpr unsigned kPieces = Width / 8;
  const int piece = static_cast<int>(threadIdx.x % kPieces);
  const int step = static_cast<int>(blockDim.x / kPieces);
  int row = static_cast<int>(threadIdx.x / kPieces);
  const T* source = x + row * stride + piece * 8;
  for (; row < capacity; row += step, source += step * stride)
    cp_async_16(tile.piece(slot(row), piece), source, row < rows ? 16 : 0);
}
template <class T, int Width>
__device__ __forceinline__ void copy_rows(SharedTile<T, Width> tile, int capacity, const T* x,
                                          int64_t stride, int rows) {
  copy_to_slots(tile, capacity, x, stride, rows, [](int row) { return row; });
}
// In the order of keys.
template <class T, int Width>
__device__ __forceinline__ void copy_keys(SharedTile<T, Width> tile, int capacity, const T* x,
                                          int64_t stride, int rows) {
  copy_to_slots(tile, capacity, x, stride, rows, key_slot);
}

// c, d += a b: two results side by side.
template <class T>
__device__ __forceinline__ void mma_two(float (&c)[4], float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[4]) {
  const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
  mma_m16n8k16<T>(c, a, left);
  mma_m16n8k16<T>(d, a, right);
}

// s = x y^T: 16 rows of x, as operands, and rows [row, row + 32) of y.
template <class T, int Width>
__device__ __forceinline__ void dots(float (&s)[4][4], const uint32_t (&x)[Width / 16][4],
                                     SharedTile<T, Width> y, int row) {
#pragma unroll
  for (int t = 0; t < 4; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[t][e] = 0;
#pragma unroll
  for (int k = 0; k < Width / 16; ++k)
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
      uint32_t b[4];
      y.b_transposed(b, row + 8 * t, 16 * k);
      mma_two<T>(s[t], s[t + 1], x[k], b);
    }
}

// acc += w x: w [16][32] as packed results, and rows [row, row + 32) of x.
template <class T, int Width>
__device__ __forceinline__ void add_product(float (&acc)[Width / 8][4], const uint32_t (&w)[4][2],
                                            SharedTile<T, Width> x, int row) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint32_t a[4] = {w[2 * k][0], w[2 * k][1], w[2 * k + 1][0], w[2 * k + 1][1]};
#pragma unroll
    for (int n = 0; n < Width / 8; n += 2) {
      uint32_t b[4];
      x.b(b, row + 16 * k, 8 * n);
      mma_two<T>(acc[n], acc[n + 1], a, b);
    }
  }
}

// Over the four lanes that share a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// Lanes that differ in bit `distance` of their number exchange: the lane without the bit gives y
// and gets the other's x.
__device__ __forceinline__ void exchange(uint32_t& x, uint32_t& y, int distance) {
  const bool upper = threadIdx.x & distance;
  const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? x : y, distance);
  x = upper ? other : x;
  y = upper ? y : other;
}

// Lane q of four gets x[q] of all four, in their order.
__device__ __forceinline__ void quad_transpose(uint32_t (&x)[4]) {
  exchange(x[0], x[1], 1);
  exchange(x[2], x[3], 1);
  exchange(x[0], x[2], 2);
  exchange(x[1], x[3], 2);
}

// 16 rows of 32 columns, `factor` for the upper and the lower half: row i goes to place(i), 16
// bytes a lane, unless that is null.
template <class T, class Place>
__device__ __forceinline__ void store_rows(const float (*x)[4], const float (&factor)[2],
                                           Place place) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[4];
#pragma unroll
    for (int t = 0; t < 4; ++t)
      words[t] = pack_pair<T>(x[t][2 * half] * factor[half], x[t][2 * half + 1] * factor[half]);
    quad_transpose(words);
    T* const row = place(threadIdx.x % kWarp / 4 + 8 * half);
    if (row != nullptr)
      *reinterpret_cast<uint4*>(row + threadIdx.x % 4 * 8) = {words[0], words[1], words[2],
                                                              words[3]};
  }
}

}  // namespace maxim

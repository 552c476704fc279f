// PTX: one function an instruction, for sm_80 and later, with its meaning for the emulator beside
// it. Nothing else in the repository contains PTX.
//
// The warp-wide ones (mma, ldmatrix) must be reached by all 32 lanes. With g = lane / 4 and
// t = lane % 4, a lane holds of the matrices of one mma, two 16-bit elements a register, the lower
// column (of B: row) in the lower half (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//
//   A [16, 16]  a[0]: row g,     columns 2t, 2t+1    a[2]: row g,     columns 2t+8, 2t+9
//               a[1]: row g + 8, columns 2t, 2t+1    a[3]: row g + 8, columns 2t+8, 2t+9
//   B [16, 8]   b[0]: rows 2t, 2t+1, column g        b[1]: rows 2t+8, 2t+9, column g
//   C [16, 8]   c[0], c[1]: row g,     columns 2t, 2t+1
//               c[2], c[3]: row g + 8, columns 2t, 2t+1
//
// ldmatrix loads 8x8 matrices of 16-bit elements from shared memory. Lane i gives the address of
// row i % 8 (16 bytes, aligned to 16) of matrix i / 8, and receives in r[m] row g, columns 2t and
// 2t+1, of matrix m; transposed: rows 2t and 2t+1, column g. So a row-major A tile in shared memory
// becomes a[0…3] by one x4 (matrices in the order of a), a B tile stored as [n, k] rows becomes
// b[0…1] by an x2, one stored as [k, n] rows by a transposed x2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace maxim {

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// c += a b, fp32, of elements T: __nv_bfloat16 or __half.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices, or two; of an x2 the addresses of lanes 16 to 31 are not used.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_transposed(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}

// Copies 16 bytes from global to shared memory, past L1, in the background: they are there for this
// thread after a wait for their group, for others after a barrier behind that. Both addresses are
// multiples of 16.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(global)
               : "memory");
}
// The same, but reads only `source_bytes` (0 to 16) and fills up with zeros.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, int source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(source_bytes)
               : "memory");
}
// Closes a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all of this thread's groups but the `newest` that were closed last.
template <int newest>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

// 2^x to 2 ulp; subnormal results become 0; 0 for -infinity.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The greater, the lesser; NaN if one of them is.
__device__ __forceinline__ float max_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ float min_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

#else  // the emulator

using maxim_emulated::Site;

template <class T>
float element(uint32_t pair, int half) {
  return static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(pair >> 16 * half)));
}

template <class T>
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  Site site = Site::current()) {
  struct Fragments {
    float c[4];
    uint32_t a[4], b[2];
  };
  const auto multiply = [](maxim_emulated::Lanes<Fragments> lanes) {
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const Fragments& own = lanes[lane];
      const int g = lane / 4, t = lane % 4;
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r)
          a[g + r % 2 * 8][2 * t + half + r / 2 * 8] = element<T>(own.a[r], half);
        for (int r = 0; r < 2; ++r) b[2 * t + half + r * 8][g] = element<T>(own.b[r], half);
        for (int r = 0; r < 2; ++r) c[g + r * 8][2 * t + half] = own.c[2 * r + half];
      }
    }
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < 32; ++lane)
      for (int r = 0; r < 4; ++r) lanes[lane].c[r] = c[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2];
  };
  const Fragments own = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const Fragments result = maxim_emulated::collective("mma", 0xffffffff, own, multiply, site);
  for (int r = 0; r < 4; ++r) c[r] = result.c[r];
}

template <int matrices, bool transposed>
void load_matrices(uint32_t (&r)[matrices], const void* row, const Site& site) {
  struct Load {
    const uint16_t* row;
    uint32_t r[matrices];
  };
  const auto load = [](maxim_emulated::Lanes<Load> lanes) {
    for (int m = 0; m < matrices; ++m) {
      const uint16_t* rows[8];
      for (int i = 0; i < 8; ++i) rows[i] = lanes[8 * m + i].row;
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t = lane % 4;
        const uint32_t low = transposed ? rows[2 * t][g] : rows[g][2 * t];
        const uint32_t high = transposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
        lanes[lane].r[m] = low | high << 16;
      }
    }
  };
  if (maxim_emulated::lane_index() < 8 * matrices) maxim_emulated::check_shared(row, 16);
  const Load own = {static_cast<const uint16_t*>(row), {}};
  const Load result = maxim_emulated::collective("ldmatrix", 0xffffffff, own, load, site);
  for (int m = 0; m < matrices; ++m) r[m] = result.r[m];
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, Site site = Site::current()) {
  load_matrices<4, false>(r, row, site);
}
inline void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row, Site site = Site::current()) {
  load_matrices<4, true>(r, row, site);
}
inline void ldmatrix_x2(uint32_t (&r)[2], const void* row, Site site = Site::current()) {
  load_matrices<2, false>(r, row, site);
}
inline void ldmatrix_x2_transposed(uint32_t (&r)[2], const void* row, Site site = Site::current()) {
  load_matrices<2, true>(r, row, site);
}

inline void cp_async_16(void* shared, const void* global, int source_bytes = 16) {
  maxim_emulated::cp_async(shared, global, 16, source_bytes);
}
inline void cp_async_commit() { maxim_emulated::cp_async_commit(); }
template <int newest>
void cp_async_wait() {
  maxim_emulated::cp_async_wait(newest);
}

inline float exp2_approximate(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0 : y;
}

inline float max_nan(float x, float y) {
  return x != x || y != y ? std::bit_cast<float>(0x7FFFFFFF) : fmaxf(x, y);
}
inline float min_nan(float x, float y) {
  return x != x || y != y ? std::bit_cast<float>(0x7FFFFFFF) : fminf(x, y);
}

#endif

}  // namespace maxim

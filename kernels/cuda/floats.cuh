// Element types of activations (float, bf16, fp16) and groups of elements that move as 128-bit
// words. Arithmetic is always float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "runtime/tensor.h"

namespace maxim {

template <>
struct DTypeOf<__nv_bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<__half> {
  static constexpr DType value = DType::f16;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else if constexpr (DTypeOf<T>::value == DType::bf16)
    return __float2bfloat16_rn(x);
  else
    return __float2half_rn(x);
}

// N neighbouring elements, N = 1, 4 or 8: read and written as 128-bit words where they fill them.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T x[N];

  static __device__ __forceinline__ Pack load(const T* p) {
    return *reinterpret_cast<const Pack*>(p);
  }
  __device__ __forceinline__ void store(T* p) const { *reinterpret_cast<Pack*>(p) = *this; }
  __device__ __forceinline__ float operator[](int i) const { return to_float(x[i]); }
  __device__ __forceinline__ void set(int i, float value) { x[i] = from_float<T>(value); }
};

// Calls f(T{}) with the element type of `dtype`: float, __nv_bfloat16 or __half.
template <class F>
void for_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(__nv_bfloat16{});
    case DType::f16:
      return f(__half{});
    default:
      fail("an operand of type {} where floats are wanted", name_of(dtype));
  }
}

}  // namespace maxim

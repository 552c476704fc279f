// Sums and maxima over a warp or a block, in a fixed order: butterflies within a warp, so that all
// lanes get the same bits, then the warps' results in ascending order.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace maxim {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

// Sum over the block, the same in every thread. `scratch`: 32 numbers of shared memory, free again
// after the next __syncthreads(). All threads call it.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* scratch) {
  x = warp_sum(x);
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) scratch[warp] = x;
  __syncthreads();
  T total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x / kWarp); ++w) total += scratch[w];
  return total;
}

// The largest number of the block, in the same way.
__device__ __forceinline__ float block_max(float x, float* scratch) {
  x = warp_max(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  float most = scratch[0];
  for (int w = 1; w < static_cast<int>(blockDim.x / kWarp); ++w) most = fmaxf(most, scratch[w]);
  return most;
}

}  // namespace maxim

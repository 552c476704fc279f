// Sums and maxima over a warp or a block, in a fixed order: butterflies within a warp, so that all
// lanes get the same bits, then the warps' results in ascending order.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace maxim {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ float warp_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

// Sum over the block, the same in every thread. `scratch`: 32 floats of shared memory, free again
// after the next __syncthreads(). All threads call it.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) scratch[warp] = x;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x / kWarp); ++w) total += scratch[w];
  return total;
}

}  // namespace maxim

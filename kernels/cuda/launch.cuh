// How kernels start, for nvcc and for a plain C++ compiler with the emulator's headers alike: no
// <<<>>>, and shared memory through the two functions here.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/plan.h"
#include "runtime/cuda_device.h"

namespace maxim {

// shared_memory(): the block's dynamic shared memory, aligned to 1024 bytes.
// static_shared(): N elements beside it, the same for all threads of the block and all places that
// name this Tag. Neither holds anything when the block starts.
#if defined(__CUDACC__)
template <class T>
__device__ __forceinline__ T* shared_memory() {
  extern __shared__ __align__(1024) unsigned char maxim_shared_bytes[];
  return reinterpret_cast<T*>(maxim_shared_bytes);
}
template <class Tag, class T, int N>
__device__ __forceinline__ T* static_shared() {
  __shared__ T elements[N];
  return elements;
}
#else
template <class T>
T* shared_memory() {
  return static_cast<T*>(maxim_emulated::dynamic_shared());
}
template <class Tag, class T, int N>
T* static_shared() {
  static char key;
  return static_cast<T*>(maxim_emulated::static_shared(&key, N * sizeof(T)));
}
#endif

// Starts `kernel` on the stream of `ops` and counts it. An empty grid (a batch without rows) starts
// nothing. Throws Error naming the kernel when the launch is refused.
template <class... Parameters, class... Arguments>
void launch(CudaOps& ops, const KernelPlan& plan, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (plan.empty()) return;
  // Without asking a kernel may have 48 KiB, its static memory and what aligns the two included.
  if (plan.shared_bytes > 46 * 1024)
    cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(plan.shared_bytes)),
               plan.name);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(plan.grid[0], plan.grid[1], plan.grid[2]);
  config.blockDim = dim3(plan.block, 1, 1);
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  config.stream = ops.stream();
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), plan.name);
  ops.count(plan);
}

}  // namespace maxim

// The emulator's cuda_runtime.h: CUDA without a GPU and without its toolkit. The CUDA sources are
// compiled by g++ as C++20 with -Itests/emulator/include and linked with tests/emulator; threads of
// a block are fibers, blocks run one at a time on each host thread.
//
// What a kernel file must do to be compiled by nvcc and by g++ alike:
//  - launch through cudaLaunchKernelEx (kernels/cuda/launch.cuh), never <<<>>>;
//  - take shared memory through the two functions of launch.cuh, dynamic and static, which have
//    __shared__ variables under __CUDACC__ and call maxim_emulated here. __shared__ and __constant__
//    are not defined here, so that a variable of theirs does not compile;
//  - use the *_sync warp functions with a mask whose lanes all arrive; let every thread of a block
//    reach every __syncthreads(), at the same place in the source, also the threads with no work;
//  - keep PTX in kernels/cuda/ptx.cuh, which has each instruction's meaning for the emulator;
//  - use atomics on integers only: there are none on floats;
//  - give streams, events and pinned memory explicitly: the default stream and asynchronous copies
//    of pageable memory are faults.
//
// What goes wrong in a kernel (a barrier or a warp function that not all threads reach, an address
// outside of an allocation) is thrown as maxim_emulated::Fault, with kernel, block and thread, by
// the host call that waits for the work. emulated/emulator.h: seeds, counters, trace.
#pragma once

#include "emulated/block.h"         // IWYU pragma: export
#include "emulated/emulator.h"      // IWYU pragma: export
#include "emulated/intrinsics.h"    // IWYU pragma: export
#include "emulated/runtime_api.h"   // IWYU pragma: export
#include "emulated/vector_types.h"  // IWYU pragma: export
#include "emulated/warp.h"          // IWYU pragma: export

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// What the look-alikes of CUDA's header-only libraries need.
#pragma once

#include <cstddef>
#include <functional>

#include "emulated/runtime_api.h"

namespace maxim_emulated {

// Queues a library's call: `run` does its work on device memory.
cudaError_t enqueue_library_call(const char* name, cudaStream_t stream, std::function<void()> run);

// A Fault unless all of the bytes lie in one allocation of device memory.
void require_device_memory(const char* call, const void* address, size_t bytes);

// A Fault if the two ranges overlap.
void require_apart(const char* call, const void* in, const void* out, size_t bytes);

}  // namespace maxim_emulated

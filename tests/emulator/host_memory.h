// Pinned host memory.
#pragma once

#include <cstddef>

namespace maxim_emulated {

// Do all of the bytes lie in one allocation of cudaMallocHost or one cudaHostRegister?
bool is_pinned(const void* address, size_t bytes);

}  // namespace maxim_emulated

// The CUDA backend for those who include no CUDA header.
#pragma once

#include <string>

#include "kernels/backend.h"

namespace maxim {

// GPUs that the driver offers.
int gpu_count();
// "" when the driver offers a GPU, else why not, in one line.
std::string why_no_gpu();
// GPU `index`. Throws Error when it cannot be used.
Backend make_cuda_backend(int index, bool tf32);

}  // namespace maxim

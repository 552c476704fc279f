// The backends of this build: a device and the operations on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/ops.h"
#include "runtime/device.h"

namespace maxim {

struct Backend {
  std::unique_ptr<Device> device;  // outlives the operations
  std::unique_ptr<Ops> ops;
  // The widest rows (hidden states, token vectors) that the operations take: of a multiple of 16
  // bytes, and of others.
  int64_t most_columns = INT64_MAX, most_odd_columns = INT64_MAX;
};

// `name`: "cpu", "cuda" (the GPU of number `local_rank`, of
// those that CUDA_VISIBLE_DEVICES shows; the only one where it shows one), or "auto": a GPU if
// there is one, else the CPU, which a build with CUDA says in one line. `tf32`: f32 matrix products
// of a GPU may round their operands to TF32. Throws InputError when there is no such backend or
// GPU, or for `tf32` on the CPU.
Backend make_backend(const std::string& name, bool tf32, int local_rank = 0);

}  // namespace maxim

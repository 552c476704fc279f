// The launch of one kernel, decided by a pure host function (layer_norm_forward_plan(rows, columns)
// …) that the launcher, the tests, the counters and the benchmark share. No CUDA header needed.
#pragma once

#include <cstdint>

namespace maxim {

struct KernelPlan {
  const char* name = "";  // of the kernel, as the counters and the static gate know it
  uint32_t grid[3] = {0, 1, 1};
  uint32_t block = 0;        // threads; always one-dimensional, a multiple of 32
  int64_t shared_bytes = 0;  // dynamic shared memory
  // The least work the operation needs: each operand read once, each result written once.
  double bytes = 0, flops = 0;

  bool empty() const { return grid[0] == 0 || grid[1] == 0 || grid[2] == 0; }
};

inline uint32_t ceil_div(int64_t a, int64_t b) { return static_cast<uint32_t>((a + b - 1) / b); }

}  // namespace maxim

// Times of calls, and the limits of the machine to hold them against, measured in the same run.
#pragma once

#include <algorithm>

#include "bench/kernels/operations.h"

namespace maxim::bench {

struct Timing {
  double seconds = 0;  // median of a call
  double spread = 0;   // (slowest - fastest) / median
};

// `repetitions` of at least 1 ms each: so many calls in a row, the device waited for before and
// after, that a clock and a launch count for nothing. Warmed up before. Operands are the same in
// every call: those that fit a cache stay in it.
Timing measure(Device& device, const Problem& problem, int repetitions);

// What bounds a call from below: bytes at the speed of Device::copy, counted once read and once
// written, or FLOPs at the speed of a square product of the run's type.
struct Limits {
  double copy_rate = 0;                   // bytes a second
  double gemm_rate = 0;                   // FLOPs a second
  int64_t copy_bytes = 0, gemm_size = 0;  // at which they were measured

  // The least time of work over the time it took.
  double share(const Case& work, double seconds) const {
    return std::max(work.bytes / copy_rate, work.flops / gemm_rate) / seconds;
  }
};
Limits measure_limits(Ops& ops, DType type, int repetitions);

// Work that the backend counted in one call; no launches where it does not count.
KernelCount count(Ops& ops, const Problem& problem);

}  // namespace maxim::bench

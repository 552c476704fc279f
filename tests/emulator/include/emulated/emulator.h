// What tests ask of the emulator itself: faults, seeds, counters, the trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace maxim_emulated {

// A program did what a GPU answers with garbage, a hang or a stall. Thrown by the host call that
// waits for the work (or enqueues it, where that is enough to know); its text is also printed to
// standard error. Everything queued is dropped with it, so destructors can run.
class Fault : public std::runtime_error {
 public:
  explicit Fault(const std::string& text);
};

// The seed of every order that CUDA leaves open: threads of a block, blocks of a grid, streams of a
// device. At start: MAXIM_EMULATED_SEED, or 1. To be set while nothing is queued.
void set_seed(uint64_t seed);

// What ran since the last clear_counters(), by name of the kernel, without its namespaces
// ("layer_norm_kernel<float>"), or of the library call ("cublasLtMatmul"). Copies are not here.
struct KernelCount {
  uint64_t launches = 0;
  uint64_t threads = 0;
  double bytes = 0;  // as declared by the launcher
  double flops = 0;
};
std::map<std::string, KernelCount> counters();
void clear_counters();

// The next launch of this host thread moves so many bytes and does so many FLOPs, by its plan.
void declare_work(double bytes, double flops);

// What ran since start_trace(), in the order in which it ran; ends the trace.
struct TraceRecord {
  std::string name;  // of a kernel, a library call, or "copy", "fill", "host function"
  int stream = 0;    // streams count from 1; 0 is a copy that the host waited for
  size_t bytes = 0;  // of a copy or fill, or received by a collective
  // Places in the order in which the host gave work to streams: its own, and the latest of the
  // events that its stream had waited for (0: none).
  uint64_t issued = 0, awaited = 0;
};
void start_trace();
std::vector<TraceRecord> take_trace();

}  // namespace maxim_emulated

#include "tests/emulator/records.h"

#include <utility>

#include "emulated/emulator.h"
#include "tests/emulator/streams.h"

namespace maxim_emulated {
namespace {

std::map<std::string, KernelCount> counts;
std::vector<TraceRecord> records;
bool tracing = false;
thread_local Declared declared;

}  // namespace

void declare_work(double bytes, double flops) { declared = {bytes, flops}; }
Declared take_declared() { return std::exchange(declared, {}); }

void count_launch(const std::string& name, uint64_t threads, const Declared& work) {
  KernelCount& count = counts[name];
  count.launches += 1;
  count.threads += threads;
  count.bytes += work.bytes;
  count.flops += work.flops;
  trace(name);
}

std::map<std::string, KernelCount> counters() {
  const auto lock = lock_device();
  return counts;
}
void clear_counters() {
  const auto lock = lock_device();
  counts.clear();
}

void trace(const std::string& name, size_t bytes) {
  if (!tracing) return;
  const Running& running = Streams::instance().running();
  records.push_back({name, running.stream, bytes, running.issued, running.awaited});
}
void start_trace() {
  const auto lock = lock_device();
  records.clear();
  tracing = true;
}
std::vector<TraceRecord> take_trace() {
  const auto lock = lock_device();
  tracing = false;
  return std::exchange(records, {});
}

}  // namespace maxim_emulated

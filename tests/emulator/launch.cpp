#include "tests/emulator/launch.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "emulated/emulator.h"
#include "emulated/library.h"
#include "emulated/runtime_api.h"
#include "tests/emulator/device_heap.h"
#include "tests/emulator/device_limits.h"
#include "tests/emulator/fault.h"
#include "tests/emulator/host_memory.h"
#include "tests/emulator/records.h"
#include "tests/emulator/streams.h"

namespace maxim_emulated {
namespace {

// Each host thread keeps up to 1,024 stacks of two mappings; a process may have 65,530.
constexpr int kMaxHostThreads = 16;
// Waking the other host threads costs about what so many emulated threads do.
constexpr uint64_t kThreadsWorthSharing = 2048;

uint64_t& current_seed() {
  static uint64_t seed = [] {
    const char* value = std::getenv("MAXIM_EMULATED_SEED");
    return value == nullptr ? 1 : std::strtoull(value, nullptr, 10);
  }();
  return seed;
}
uint64_t grids_run = 0;  // since the seed was set; each grid gets orders of its own

std::map<const void*, size_t> shared_bytes_granted;

bool valid_shape(const dim3& grid, const dim3& block) {
  const bool empty =
      grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  return !empty && grid.x <= kMaxGridX && grid.y <= kMaxGridYZ && grid.z <= kMaxGridYZ &&
         block.x <= kMaxBlockXY && block.y <= kMaxBlockXY && block.z <= kMaxBlockZ &&
         uint64_t{block.x} * block.y * block.z <= kMaxThreadsPerBlock;
}

size_t granted_shared_bytes(const void* kernel) {
  const auto found = shared_bytes_granted.find(kernel);
  return found == shared_bytes_granted.end() ? kDefaultSharedBytes
                                             : std::max(kDefaultSharedBytes, found->second);
}

uint64_t thread_count(const Launch& launch) {
  return uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z * launch.block.x * launch.block.y *
         launch.block.z;
}

}  // namespace

void set_seed(uint64_t value) {
  const auto lock = lock_device();
  current_seed() = value;
  grids_run = 0;
  Streams::instance().reseed(value);
}

uint64_t seed() { return current_seed(); }

int host_threads() { return std::min(omp_get_max_threads(), kMaxHostThreads); }

void run_grid(const Launch& launch) {
  catch_access_faults();
  Random random(seed() * 0x9e3779b97f4a7c15u + ++grids_run);
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const Order order(blocks, random);
  const uint64_t block_seed = random.next();
  std::atomic<uint64_t> next = 0;
  std::atomic<bool> failed = false;
  std::exception_ptr fault;
  const auto run_blocks = [&] {
    Block& block = Block::of_this_thread();
    for (uint64_t i; !failed && (i = next++) < blocks;) {
      const uint64_t id = order[i];
      const uint3 index = {static_cast<unsigned>(id % launch.grid.x),
                           static_cast<unsigned>(id / launch.grid.x % launch.grid.y),
                           static_cast<unsigned>(id / launch.grid.x / launch.grid.y)};
      try {
        block.run(launch, index, block_seed + id);
      } catch (...) {
        if (!failed.exchange(true)) fault = std::current_exception();
      }
    }
  };
  const bool share = blocks > 1 && thread_count(launch) >= kThreadsWorthSharing;
#pragma omp parallel num_threads(share ? host_threads() : 1)
  run_blocks();
  if (fault != nullptr) std::rethrow_exception(fault);
  DeviceHeap::instance().check_ends("kernel " + launch.name);
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> call,
                   std::initializer_list<const void*> arguments) {
  const auto lock = lock_device();
  const Declared declared = take_declared();
  if (config.numAttrs != 0) return answer(cudaErrorNotSupported);
  if (!valid_shape(config.gridDim, config.blockDim)) return answer(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > granted_shared_bytes(kernel)) return answer(cudaErrorInvalidValue);
  if (const cudaError_t error = Streams::instance().check(config.stream)) return answer(error);
  if (config.stream->device != current_device()) return answer(cudaErrorInvalidResourceHandle);
  Launch launch = {.name = function_name(kernel),
                   .grid = config.gridDim,
                   .block = config.blockDim,
                   .shared_bytes = config.dynamicSmemBytes,
                   .call = std::move(call)};
  int position = 0;
  for (const void* argument : arguments) {
    ++position;
    if (argument == nullptr || DeviceHeap::instance().holds(argument, 0) || is_pinned(argument, 1))
      continue;
    throw Fault(fmt::format("kernel {}: its argument {} is neither device nor pinned memory: {}",
                            launch.name, position, DeviceHeap::instance().describe(argument)));
  }
  Streams::instance().enqueue(config.stream, {.run = [launch = std::move(launch), declared] {
                                count_launch(launch.name, thread_count(launch), declared);
                                run_grid(launch);
                              }});
  return cudaSuccess;
}

cudaError_t enqueue_library_call(const char* name, cudaStream_t stream, std::function<void()> run) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  Streams::instance().enqueue(stream,
                              {.run = [name, declared = take_declared(), run = std::move(run)] {
                                count_launch(name, 0, declared);
                                run();
                                DeviceHeap::instance().check_ends(name);
                              }});
  return cudaSuccess;
}

cudaError_t set_function_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const auto lock = lock_device();
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > kMaxSharedBytes)
    return answer(cudaErrorInvalidValue);
  shared_bytes_granted[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

// By threads and shared memory: the emulator knows no registers.
cudaError_t blocks_per_multiprocessor(int* blocks, int threads, size_t shared_bytes) {
  if (threads < 1 || threads > kMaxThreadsPerBlock) return answer(cudaErrorInvalidValue);
  const int by_threads = kMaxThreadsPerMultiprocessor / ((threads + 31) / 32 * 32);
  const auto by_shared =
      static_cast<int>(kSharedBytesPerMultiprocessor / (shared_bytes + kReservedSharedBytes));
  *blocks = std::min({by_threads, by_shared, kMaxBlocksPerMultiprocessor});
  return cudaSuccess;
}

}  // namespace maxim_emulated

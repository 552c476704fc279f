// Streams, events, copies and launches as the host sees them, and the faults of their use.
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"

namespace maxim_tests {
namespace {

using maxim_emulated::Fault;

struct Stream {
  Stream() { REQUIRE(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking) == cudaSuccess); }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  cudaStream_t handle = nullptr;
};
struct Event {
  Event() { REQUIRE(cudaEventCreate(&handle) == cudaSuccess); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  cudaEvent_t handle = nullptr;
};
struct PinnedInts {
  explicit PinnedInts(size_t count) {
    REQUIRE(cudaMallocHost(&data, count * sizeof(int)) == cudaSuccess);
  }
  ~PinnedInts() { cudaFreeHost(data); }
  PinnedInts(const PinnedInts&) = delete;
  int* data = nullptr;
};

void set_all(int* out, int value) { out[threadIdx.x] = value; }
void add_one(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x] + 1; }

template <class... Parameters, class... Arguments>
cudaError_t launch_on(cudaStream_t stream, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config = {.gridDim = 1, .blockDim = 8, .stream = stream};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

enum class Ordering { kNone, kEvent };

// One stream writes what another one reads; what the reader made of it.
int produce_and_consume(uint64_t seed, Ordering ordering) {
  maxim_emulated::set_seed(seed);
  const Stream producer, consumer;
  const Event produced;
  const DeviceBuffer<int> middle(8), result(8);
  launch_on(producer.handle, set_all, middle.data(), 41);
  if (ordering == Ordering::kEvent) {
    REQUIRE(cudaEventRecord(produced.handle, producer.handle) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(consumer.handle, produced.handle) == cudaSuccess);
  }
  launch_on(consumer.handle, add_one, middle.data(), result.data());
  REQUIRE(cudaStreamSynchronize(consumer.handle) == cudaSuccess);
  return result.to_host()[0];
}

// A stream reads what another one then overwrites.
int read_and_overwrite(uint64_t seed, Ordering ordering) {
  maxim_emulated::set_seed(seed);
  const Stream reader, writer;
  const Event read;
  const DeviceBuffer<int> shared(std::vector<int>(8, 41)), result(8);
  launch_on(reader.handle, add_one, shared.data(), result.data());
  if (ordering == Ordering::kEvent) {
    cudaEventRecord(read.handle, reader.handle);
    cudaStreamWaitEvent(writer.handle, read.handle);
  }
  launch_on(writer.handle, set_all, shared.data(), 0);
  return result.to_host()[0];
}

template <class Program>
std::set<int> results_under_seeds(Program program, Ordering ordering) {
  std::set<int> results;
  for (uint64_t seed = 1; seed <= 12; ++seed) results.insert(program(seed, ordering));
  return results;
}

}  // namespace

TEST_CASE("an event orders two streams, and a missing one shows") {
  REQUIRE(results_under_seeds(produce_and_consume, Ordering::kEvent) == std::set{42});
  REQUIRE(results_under_seeds(read_and_overwrite, Ordering::kEvent) == std::set{42});
  REQUIRE(results_under_seeds(produce_and_consume, Ordering::kNone).size() == 2);
  REQUIRE(results_under_seeds(read_and_overwrite, Ordering::kNone).size() == 2);
}

TEST_CASE("work runs only when the host waits, with the arguments of its launch") {
  const Stream stream;
  const DeviceBuffer<int> values(8);
  const PinnedInts host(8);
  host.data[0] = 7;
  int value = 1;
  REQUIRE(launch_on(stream.handle, set_all, values.data(), value) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(host.data, values.data(), 32, cudaMemcpyDeviceToHost, stream.handle) ==
          cudaSuccess);
  value = 2;
  REQUIRE(host.data[0] == 7);
  REQUIRE(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  REQUIRE(host.data[0] == 1);
}

TEST_CASE("a copy reads its source when it runs, so a staging buffer reused too early shows") {
  const Stream stream;
  const DeviceBuffer<int> values(1);
  const PinnedInts host(1);
  host.data[0] = 1;
  cudaMemcpyAsync(values.data(), host.data, 4, cudaMemcpyHostToDevice, stream.handle);
  host.data[0] = 2;
  cudaStreamSynchronize(stream.handle);
  REQUIRE(values.to_host()[0] == 2);
}

TEST_CASE("asynchronous copies of pageable memory are faults") {
  const Stream stream;
  const DeviceBuffer<int> values(8);
  std::vector<int> pageable(8);
  REQUIRE_THROWS_AS(
      cudaMemcpyAsync(values.data(), pageable.data(), 32, cudaMemcpyHostToDevice, stream.handle),
      Fault);
  REQUIRE_THROWS_AS(
      cudaMemcpyAsync(pageable.data(), values.data(), 32, cudaMemcpyDeviceToHost, stream.handle),
      Fault);
  REQUIRE(cudaHostRegister(pageable.data(), 32, cudaHostRegisterDefault) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(values.data(), pageable.data(), 32, cudaMemcpyHostToDevice,
                          stream.handle) == cudaSuccess);
  REQUIRE(cudaHostUnregister(pageable.data()) == cudaSuccess);
}

TEST_CASE("the default stream is a fault") {
  const DeviceBuffer<int> values(8);
  REQUIRE_THROWS_AS(launch_on(nullptr, set_all, values.data(), 1), Fault);
  REQUIRE_THROWS_AS(cudaMemsetAsync(values.data(), 0, 32), Fault);
  REQUIRE_THROWS_AS(cudaStreamSynchronize(nullptr), Fault);
}

TEST_CASE("copies and fills stay within allocations and keep to their direction") {
  const Stream stream;
  const DeviceBuffer<int> values(8);
  const PinnedInts host(8);
  std::vector<int> pageable(16);
  REQUIRE_THROWS_AS(cudaMemcpy(values.data(), pageable.data(), 33, cudaMemcpyHostToDevice), Fault);
  REQUIRE_THROWS_AS(cudaMemcpy(pageable.data(), values.data() + 1, 32, cudaMemcpyDeviceToHost),
                    Fault);
  REQUIRE_THROWS_AS(cudaMemsetAsync(values.data() + 8, 0, 4, stream.handle), Fault);
  REQUIRE_THROWS_AS(
      cudaMemcpyAsync(values.data(), host.data + 1, 32, cudaMemcpyHostToDevice, stream.handle),
      Fault);
  REQUIRE(cudaMemcpy(pageable.data(), values.data(), 32, cudaMemcpyHostToDevice) ==
          cudaErrorInvalidValue);
  REQUIRE(cudaMemset(host.data, 0, 4) == cudaErrorInvalidValue);
  REQUIRE(cudaGetLastError() == cudaErrorInvalidValue);
  REQUIRE(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaMemset(values.data(), 0, 32) == cudaSuccess);
  REQUIRE(values.to_host() == std::vector<int>(8, 0));
}

TEST_CASE("launches are refused where CUDA refuses them") {
  const Stream stream;
  const DeviceBuffer<int> values(8);
  const auto try_shape = [&](dim3 grid, dim3 block, size_t shared_bytes) {
    cudaLaunchConfig_t config = {.gridDim = grid,
                                 .blockDim = block,
                                 .dynamicSmemBytes = shared_bytes,
                                 .stream = stream.handle};
    return cudaLaunchKernelEx(&config, add_one, values.data(), values.data());
  };
  REQUIRE(try_shape(0, 8, 0) == cudaErrorInvalidConfiguration);
  REQUIRE(try_shape(1, 0, 0) == cudaErrorInvalidConfiguration);
  REQUIRE(try_shape({1, 65536, 1}, 8, 0) == cudaErrorInvalidConfiguration);
  REQUIRE(try_shape({1, 1, 65536}, 8, 0) == cudaErrorInvalidConfiguration);
  REQUIRE(try_shape(1, {32, 33, 1}, 0) == cudaErrorInvalidConfiguration);
  REQUIRE(try_shape(1, {1, 1, 65}, 0) == cudaErrorInvalidConfiguration);
  REQUIRE(try_shape(1, 8, 48 * 1024) == cudaSuccess);
  REQUIRE(try_shape(1, 8, 48 * 1024 + 1) == cudaErrorInvalidValue);
  const auto allow = cudaFuncAttributeMaxDynamicSharedMemorySize;
  REQUIRE(cudaFuncSetAttribute(add_one, allow, 232449) == cudaErrorInvalidValue);
  REQUIRE(cudaFuncSetAttribute(add_one, allow, 232448) == cudaSuccess);
  REQUIRE(try_shape(1, 8, 232448) == cudaSuccess);
  REQUIRE(cudaFuncSetAttribute(add_one, allow, 1000) == cudaSuccess);
  int on_host = 0;
  REQUIRE_THROWS_AS(launch_on(stream.handle, set_all, &on_host, 1), Fault);
}

TEST_CASE("events: done, not yet, never recorded, recorded again") {
  const Stream stream, other;
  const Event event, untouched;
  const DeviceBuffer<int> values(std::vector<int>(8, 0));
  REQUIRE(cudaEventQuery(event.handle) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(other.handle, untouched.handle) == cudaSuccess);
  launch_on(stream.handle, set_all, values.data(), 1);
  cudaEventRecord(event.handle, stream.handle);
  REQUIRE(cudaEventQuery(event.handle) == cudaErrorNotReady);
  while (cudaEventQuery(event.handle) == cudaErrorNotReady) {
  }
  REQUIRE(values.to_host()[0] == 1);
  // A wait means the last record at the time of the call, not one that comes later.
  launch_on(stream.handle, set_all, values.data(), 2);
  cudaEventRecord(event.handle, stream.handle);
  cudaStreamWaitEvent(other.handle, event.handle);
  cudaStreamWaitEvent(stream.handle, event.handle);
  launch_on(stream.handle, set_all, values.data(), 3);
  cudaEventRecord(event.handle, stream.handle);
  REQUIRE(cudaStreamSynchronize(other.handle) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream.handle) == cudaSuccess);
  REQUIRE(values.to_host()[0] == 3);
}

TEST_CASE("a destroyed stream's work still runs") {
  const DeviceBuffer<int> values(8);
  {
    const Stream stream;
    launch_on(stream.handle, set_all, values.data(), 5);
  }
  REQUIRE(values.to_host()[0] == 5);
}

TEST_CASE("counters and trace") {
  const Stream stream;
  const DeviceBuffer<int> values(8), others(8);
  maxim_emulated::clear_counters();
  maxim_emulated::start_trace();
  maxim_emulated::declare_work(64, 8);
  launch_on(stream.handle, add_one, values.data(), others.data());
  launch_on(stream.handle, add_one, others.data(), values.data());
  cudaMemsetAsync(values.data(), 0, 32, stream.handle);
  cudaStreamSynchronize(stream.handle);
  const auto counts = maxim_emulated::counters();
  REQUIRE(counts.size() == 1);
  REQUIRE(counts.at("add_one").launches == 2);
  REQUIRE(counts.at("add_one").threads == 16);
  REQUIRE(counts.at("add_one").bytes == 64);
  REQUIRE(counts.at("add_one").flops == 8);
  const auto trace = maxim_emulated::take_trace();
  REQUIRE(trace.size() == 3);
  REQUIRE((trace[0].name == "add_one" && trace[1].name == "add_one" && trace[2].name == "fill"));
  REQUIRE((trace[2].bytes == 32 && trace[2].stream == trace[0].stream && trace[0].stream > 0));
}

TEST_CASE("memory: size, limit, double free") {
  size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  void* address = nullptr;
  REQUIRE(cudaMalloc(&address, total + 1) == cudaErrorMemoryAllocation);
  REQUIRE(address == nullptr);
  REQUIRE(cudaMalloc(&address, 1000) == cudaSuccess);
  REQUIRE(reinterpret_cast<uintptr_t>(address) % 256 == 0);
  size_t left = 0;
  cudaMemGetInfo(&left, &total);
  REQUIRE(free - left == 1024);
  REQUIRE(cudaFree(address) == cudaSuccess);
  REQUIRE(cudaFree(address) == cudaErrorInvalidValue);
  REQUIRE(cudaFree(nullptr) == cudaSuccess);
}

}  // namespace maxim_tests

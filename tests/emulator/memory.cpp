// cudaMalloc, pinned memory, copies and fills.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include "emulated/emulator.h"
#include "emulated/library.h"
#include "emulated/runtime_api.h"
#include "tests/emulator/device_heap.h"
#include "tests/emulator/host_memory.h"
#include "tests/emulator/records.h"
#include "tests/emulator/streams.h"

namespace maxim_emulated {
namespace {

constexpr size_t kPinnedAlignment = 4096;

struct Pinned {
  size_t bytes;
  bool registered;  // by cudaHostRegister: not ours to free
};
std::map<const char*, Pinned> pinned;

enum class Place { kDevice, kPinned, kPageable };

Place place_of(const void* address) {
  if (DeviceHeap::instance().reserved(address)) return Place::kDevice;
  return is_pinned(address, 1) ? Place::kPinned : Place::kPageable;
}

// The error of a copy's or fill's operand; a range that leaves its allocation is a Fault.
cudaError_t check_operand(const char* call, const void* address, size_t bytes, bool on_device) {
  const Place place = place_of(address);
  if ((place == Place::kDevice) != on_device) return cudaErrorInvalidValue;
  if (place == Place::kDevice && !DeviceHeap::instance().holds(address, bytes))
    throw Fault(
        fmt::format("{} of {} bytes at {}", call, bytes, DeviceHeap::instance().describe(address)));
  if (place == Place::kPinned && !is_pinned(address, bytes))
    throw Fault(
        fmt::format("{} of {} bytes at {} leaves its pinned allocation", call, bytes, address));
  return cudaSuccess;
}

cudaError_t check_copy(const char* call, const void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = any ? place_of(to) == Place::kDevice
                             : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = any ? place_of(from) == Place::kDevice
                               : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (const cudaError_t error = check_operand(call, to, bytes, to_device)) return error;
  return check_operand(call, from, bytes, from_device);
}

// Runs what the host waits for at once: after the work of the streams that the default one orders.
cudaError_t run_now(std::function<void()> run) {
  Streams& streams = Streams::instance();
  streams.run_until([&] { return streams.blocking_idle(); });
  const DeviceAccess access;
  run();
  return cudaSuccess;
}

std::function<void()> copy_work(void* to, const void* from, size_t bytes) {
  return [=] {
    trace("copy", bytes);
    std::memmove(to, from, bytes);
  };
}

std::function<void()> fill_work(void* to, int value, size_t bytes) {
  return [=] {
    trace("fill", bytes);
    std::memset(to, value, bytes);
  };
}

}  // namespace

void require_device_memory(const char* call, const void* address, size_t bytes) {
  if (!DeviceHeap::instance().holds(address, bytes))
    throw Fault(
        fmt::format("{}: {} bytes at {}", call, bytes, DeviceHeap::instance().describe(address)));
}

void require_apart(const char* call, const void* in, const void* out, size_t bytes) {
  const auto distance = static_cast<const char*>(in) - static_cast<const char*>(out);
  if (static_cast<size_t>(std::abs(distance)) < bytes)
    throw Fault(fmt::format("{}: an output overlaps its input", call));
}

bool is_pinned(const void* address, size_t bytes) {
  const char* first = static_cast<const char*>(address);
  auto found = pinned.upper_bound(first);
  if (found == pinned.begin()) return false;
  --found;
  return first + bytes <= found->first + found->second.bytes;
}

}  // namespace maxim_emulated

using maxim_emulated::answer;
using maxim_emulated::DeviceHeap;
using maxim_emulated::lock_device;
using maxim_emulated::Streams;

cudaError_t cudaMalloc(void** address, size_t bytes) {
  const auto lock = lock_device();
  if (address == nullptr) return answer(cudaErrorInvalidValue);
  *address = bytes == 0 ? nullptr : DeviceHeap::instance().allocate(bytes);
  return answer(bytes == 0 || *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}

// Waits for all work, as CUDA's does.
cudaError_t cudaFree(void* address) {
  const auto lock = lock_device();
  Streams::instance().run_all();
  if (address == nullptr || DeviceHeap::instance().free(address)) return cudaSuccess;
  return answer(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  const auto lock = lock_device();
  if (address == nullptr) return answer(cudaErrorInvalidValue);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  const size_t whole = (bytes + maxim_emulated::kPinnedAlignment - 1) /
                       maxim_emulated::kPinnedAlignment * maxim_emulated::kPinnedAlignment;
  *address = std::aligned_alloc(maxim_emulated::kPinnedAlignment, whole);
  if (*address == nullptr) return answer(cudaErrorMemoryAllocation);
  std::memset(*address, 0xff, whole);
  maxim_emulated::pinned[static_cast<char*>(*address)] = {bytes, false};
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** address, size_t bytes, unsigned flags) {
  return cudaHostAlloc(address, bytes, flags);
}
cudaError_t cudaFreeHost(void* address) {
  const auto lock = lock_device();
  Streams::instance().run_all();
  if (address == nullptr) return cudaSuccess;
  const auto found = maxim_emulated::pinned.find(static_cast<char*>(address));
  if (found == maxim_emulated::pinned.end() || found->second.registered)
    return answer(cudaErrorInvalidValue);
  maxim_emulated::pinned.erase(found);
  std::free(address);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  const auto lock = lock_device();
  if (address == nullptr || bytes == 0) return answer(cudaErrorInvalidValue);
  if (maxim_emulated::is_pinned(address, 1)) return answer(cudaErrorHostMemoryAlreadyRegistered);
  maxim_emulated::pinned[static_cast<char*>(address)] = {bytes, true};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  const auto lock = lock_device();
  const auto found = maxim_emulated::pinned.find(static_cast<char*>(address));
  if (found == maxim_emulated::pinned.end() || !found->second.registered)
    return answer(cudaErrorHostMemoryNotRegistered);
  Streams::instance().run_all();
  maxim_emulated::pinned.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const auto lock = lock_device();
  if (bytes == 0) return cudaSuccess;
  if (const auto error = maxim_emulated::check_copy("cudaMemcpy", to, from, bytes, kind))
    return answer(error);
  return maxim_emulated::run_now(maxim_emulated::copy_work(to, from, bytes));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  if (bytes == 0) return cudaSuccess;
  if (const auto error = maxim_emulated::check_copy("cudaMemcpyAsync", to, from, bytes, kind))
    return answer(error);
  using maxim_emulated::Place;
  using maxim_emulated::place_of;
  if (place_of(to) == Place::kPageable || place_of(from) == Place::kPageable)
    throw maxim_emulated::Fault(
        "cudaMemcpyAsync with pageable host memory, which would wait for the copy: stage it "
        "through cudaMallocHost");
  Streams::instance().enqueue(stream, {.run = maxim_emulated::copy_work(to, from, bytes)});
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const auto lock = lock_device();
  if (bytes == 0) return cudaSuccess;
  if (const auto error = maxim_emulated::check_operand("cudaMemset", to, bytes, true))
    return answer(error);
  return maxim_emulated::run_now(maxim_emulated::fill_work(to, value, bytes));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const auto lock = lock_device();
  if (const cudaError_t error = Streams::instance().check(stream)) return answer(error);
  if (bytes == 0) return cudaSuccess;
  if (const auto error = maxim_emulated::check_operand("cudaMemsetAsync", to, bytes, true))
    return answer(error);
  Streams::instance().enqueue(stream, {.run = maxim_emulated::fill_work(to, value, bytes)});
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const auto lock = lock_device();
  *total = DeviceHeap::instance().capacity();
  *free = *total - DeviceHeap::instance().used();
  return cudaSuccess;
}

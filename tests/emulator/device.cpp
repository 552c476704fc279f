// Devices, versions and errors.
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "emulated/runtime_api.h"
#include "tests/emulator/device_heap.h"
#include "tests/emulator/device_limits.h"
#include "tests/emulator/streams.h"

namespace maxim_emulated {
namespace {

constexpr int kVersion = 13000;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_of_thread = 0;

int device_count() {
  const char* value = std::getenv("MAXIM_EMULATED_DEVICES");
  if (value == nullptr) value = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return value == nullptr ? 1 : std::atoi(value);
}

bool exists(int device) { return device >= 0 && device < device_count(); }

}  // namespace

int current_device() { return device_of_thread; }

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace maxim_emulated

using namespace maxim_emulated;

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection:
      return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
      return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidMemcpyDirection:
      return "invalid copy direction for memcpy";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "host memory is already registered";
    case cudaErrorHostMemoryNotRegistered:
      return "host memory was not registered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return answer(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (!exists(device)) return answer(cudaErrorInvalidDevice);
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!exists(device)) return answer(cudaErrorInvalidDevice);
  *properties = {
      .name = "emulated",
      .totalGlobalMem = DeviceHeap::instance().capacity(),
      .sharedMemPerBlock = kDefaultSharedBytes,
      .sharedMemPerBlockOptin = kMaxSharedBytes,
      .sharedMemPerMultiprocessor = kSharedBytesPerMultiprocessor,
      .major = kMajor,
      .minor = kMinor,
      .multiProcessorCount = kMultiprocessors,
      .maxThreadsPerBlock = kMaxThreadsPerBlock,
      .maxThreadsPerMultiProcessor = kMaxThreadsPerMultiprocessor,
      .maxThreadsDim = {kMaxBlockXY, kMaxBlockXY, kMaxBlockZ},
      .maxGridSize = {kMaxGridX, kMaxGridYZ, kMaxGridYZ},
      .warpSize = 32,
      .regsPerBlock = 65536,
      .regsPerMultiprocessor = 65536,
      .l2CacheSize = 50 << 20,
      .memoryBusWidth = 5120,
      .pciDomainID = 0,
      .pciBusID = device,
      .pciDeviceID = 0,
  };
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!exists(device)) return answer(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kMaxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kDefaultSharedBytes;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = kMaxThreadsPerMultiprocessor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedBytesPerMultiprocessor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMaxSharedBytes;
      return cudaSuccess;
  }
  return answer(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!exists(device)) return answer(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const auto lock = lock_device();
  Streams::instance().run_all();
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

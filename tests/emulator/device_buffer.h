// What the emulator's tests have in common: device arrays and launches on one stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace maxim_tests {

// A stream that the tests use where any will do.
inline cudaStream_t test_stream() {
  static cudaStream_t stream = [] {
    cudaStream_t created = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking) == cudaSuccess);
    return created;
  }();
  return stream;
}

template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) {
    REQUIRE(cudaMalloc(&data_, count * sizeof(T)) == cudaSuccess);
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    REQUIRE(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  T* data() const { return data_; }
  // Waits for all work first.
  std::vector<T> to_host() const {
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    std::vector<T> values(count_);
    REQUIRE(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

struct Shape {
  dim3 grid, block;
  size_t shared_bytes = 0;
};

// Queues a launch on the test stream.
template <class... Parameters, class... Arguments>
cudaError_t try_launch(const Shape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config = {.gridDim = shape.grid,
                               .blockDim = shape.block,
                               .dynamicSmemBytes = shape.shared_bytes,
                               .stream = test_stream()};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
template <class... Parameters, class... Arguments>
void launch(const Shape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  REQUIRE(try_launch(shape, kernel, arguments...) == cudaSuccess);
}

}  // namespace maxim_tests

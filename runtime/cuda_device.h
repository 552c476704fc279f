// A GPU as a Device: one stream, one more for copies ahead, memory from cudaMalloc, copies staged
// through pinned memory. Only kernels/cuda and runtime/cuda* may include this.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <unordered_map>

#include "runtime/device.h"

namespace maxim {

// Throws Error "what: the CUDA error's name and text" unless `status` is success.
void cuda_check(cudaError_t status, const char* what);

// GPUs that the driver offers; 0 without a driver, and then `reason` says why in one line.
int cuda_device_count(std::string* reason = nullptr);

class CudaDevice final : public Device {
 public:
  // Throws Error when there is no such device or it is older than compute capability 8.0.
  explicit CudaDevice(int index);
  ~CudaDevice() override;

  std::string name() const override { return name_; }  // "cuda:0 NVIDIA H100 80GB HBM3"
  void* allocate(int64_t bytes, const char* purpose) override;
  void free(void* pointer) override;
  // Staged through pinned memory, so `source` is free at once and the copy waits for nothing.
  void copy_in(const Tensor& destination, const void* source) override;
  void copy_out(void* destination, const Tensor& source) override;
  void copy(const Tensor& destination, const Tensor& source) override;
  void zero(const Tensor& tensor) override;
  void synchronize() override;
  void begin_ahead(int slot) override;
  void end_ahead() override;
  void release(int slot) override;

  // Called again and again while the host waits for the device, with the seconds waited so far;
  // what it throws ends the wait. Null: none.
  void set_watch(std::function<void(double)> watch) { watch_ = std::move(watch); }

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }
  int64_t shared_bytes() const { return shared_bytes_; }  // of dynamic shared memory a block

 private:
  // Waits until `query` is no longer cudaErrorNotReady.
  void wait(const std::function<cudaError_t()>& query, const char* what);
  char* stage(int64_t bytes);
  void join_copies();

  int index_;
  int multiprocessors_ = 0;
  int64_t shared_bytes_ = 0;
  std::string name_;
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  cudaStream_t copy_stream_ = nullptr;  // of copy_in: one of the two
  cudaEvent_t released_[2] = {nullptr, nullptr}, copied_ = nullptr;
  std::function<void(double)> watch_;
  std::unordered_map<void*, int64_t> blocks_;

  // A ring of pinned memory. A piece is free again when the stream has passed it; two halves, each
  // with an event behind its last copy (also of those ahead, which the stream waits for).
  static constexpr int64_t kHalf = int64_t{4} << 20;
  char* ring_ = nullptr;
  cudaEvent_t passed_[2] = {nullptr, nullptr};
  int64_t used_ = 0;  // bytes of the current half
  int half_ = 0;
};

}  // namespace maxim

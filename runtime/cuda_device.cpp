#include "runtime/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace maxim {
namespace {

constexpr int64_t kAlignment = 256;  // of pieces of the ring, as of all device memory

}  // namespace

void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    fail("{}: {}: {}", what, cudaGetErrorName(status), cudaGetErrorString(status));
}

int cuda_device_count(std::string* reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) count = 0;
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (reason != nullptr && count == 0)
    *reason = driver == 0             ? "there is no NVIDIA driver"
              : status == cudaSuccess ? "the driver offers no GPU"
                                      : cudaGetErrorString(status);
  return count;
}

CudaDevice::CudaDevice(int index) : index_(index) {
  std::string reason;
  const int count = cuda_device_count(&reason);
  if (index >= count)
    fail("cuda:{} does not exist: {}", index, count == 0 ? reason : fmt::format("{} GPUs", count));
  cuda_check(cudaSetDevice(index), "cudaSetDevice");
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  if (properties.major < 8)
    fail("cuda:{} {} has compute capability {}.{}; 8.0 or newer is needed", index, properties.name,
         properties.major, properties.minor);
  name_ = fmt::format("cuda:{} {}", index, properties.name);
  multiprocessors_ = properties.multiProcessorCount;
  shared_bytes_ = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  for (cudaStream_t* stream : {&stream_, &copies_})
    cuda_check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate");
  copy_stream_ = stream_;
  for (cudaEvent_t* event : {&passed_[0], &passed_[1], &released_[0], &released_[1], &copied_})
    cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
  void* ring = nullptr;
  cuda_check(cudaMallocHost(&ring, 2 * kHalf), "pinned memory for copies");
  ring_ = static_cast<char*>(ring);
}

// What was not freed goes with the process; errors of an earlier kernel were reported where it was
// waited for.
CudaDevice::~CudaDevice() {
  cudaSetDevice(index_);
  for (cudaStream_t stream : {copies_, stream_}) cudaStreamSynchronize(stream);
  for (const auto& [pointer, bytes] : blocks_) cudaFree(pointer);
  cudaFreeHost(ring_);
  for (cudaEvent_t event : {passed_[0], passed_[1], released_[0], released_[1], copied_})
    cudaEventDestroy(event);
  for (cudaStream_t stream : {copies_, stream_}) cudaStreamDestroy(stream);
}

void* CudaDevice::allocate(int64_t bytes, const char* purpose) {
  MAXIM_CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
  void* pointer = nullptr;
  const cudaError_t status = cudaMalloc(&pointer, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    size_t free = 0, total = 0;
    cudaGetLastError();  // it was reported: later calls must not find it
    cudaMemGetInfo(&free, &total);
    fail("{}: no memory for {}: {} bytes wanted, {} of {} free", name_, purpose, bytes, free,
         total);
  }
  cuda_check(status, purpose);
  blocks_[pointer] = bytes;
  ++allocations_;
  allocated_bytes_ += bytes;
  return pointer;
}

void CudaDevice::free(void* pointer) {
  if (pointer == nullptr) return;
  const auto block = blocks_.find(pointer);
  MAXIM_CHECK(block != blocks_.end(), "freeing what was not allocated here");
  allocated_bytes_ -= block->second;
  blocks_.erase(block);
  synchronize();  // work on it may still be queued
  cuda_check(cudaFree(pointer), "cudaFree");
}

// A piece of the ring, good until a half's length of pieces was handed out after it.
char* CudaDevice::stage(int64_t bytes) {
  const int64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ + size > kHalf) {
    if (copy_stream_ == copies_) join_copies();
    cuda_check(cudaEventRecord(passed_[half_], stream_), "cudaEventRecord");
    half_ = 1 - half_;
    used_ = 0;
    wait([&] { return cudaEventQuery(passed_[half_]); }, "copying to the device");
  }
  char* piece = ring_ + half_ * kHalf + used_;
  used_ += size;
  return piece;
}

void CudaDevice::copy_in(const Tensor& destination, const void* source) {
  for (int64_t at = 0; at < destination.bytes(); at += kHalf) {
    const int64_t bytes = std::min(kHalf, destination.bytes() - at);
    char* piece = stage(bytes);
    std::memcpy(piece, static_cast<const char*>(source) + at, bytes);
    cuda_check(cudaMemcpyAsync(static_cast<char*>(destination.data()) + at, piece, bytes,
                               cudaMemcpyHostToDevice, copy_stream_),
               "copying to the device");
  }
}

void CudaDevice::copy_out(void* destination, const Tensor& source) {
  for (int64_t at = 0; at < source.bytes(); at += kHalf) {
    const int64_t bytes = std::min(kHalf, source.bytes() - at);
    char* piece = stage(bytes);
    cuda_check(cudaMemcpyAsync(piece, static_cast<const char*>(source.data()) + at, bytes,
                               cudaMemcpyDeviceToHost, stream_),
               "copying from the device");
    synchronize();
    std::memcpy(static_cast<char*>(destination) + at, piece, bytes);
  }
}

void CudaDevice::copy(const Tensor& destination, const Tensor& source) {
  MAXIM_CHECK(destination.bytes() == source.bytes(), "{} bytes into {}", source.bytes(),
              destination.bytes());
  if (!source.empty())
    cuda_check(cudaMemcpyAsync(destination.data(), source.data(), source.bytes(),
                               cudaMemcpyDeviceToDevice, stream_),
               "copying on the device");
}

void CudaDevice::zero(const Tensor& tensor) {
  if (!tensor.empty())
    cuda_check(cudaMemsetAsync(tensor.data(), 0, tensor.bytes(), stream_), "zeroing");
}

void CudaDevice::begin_ahead(int slot) {
  cuda_check(cudaStreamWaitEvent(copies_, released_[slot], 0), "cudaStreamWaitEvent");
  copy_stream_ = copies_;
}

void CudaDevice::end_ahead() {
  join_copies();
  copy_stream_ = stream_;
}

void CudaDevice::release(int slot) {
  cuda_check(cudaEventRecord(released_[slot], stream_), "cudaEventRecord");
}

void CudaDevice::join_copies() {
  cuda_check(cudaEventRecord(copied_, copies_), "cudaEventRecord");
  cuda_check(cudaStreamWaitEvent(stream_, copied_, 0), "cudaStreamWaitEvent");
}

void CudaDevice::synchronize() {
  ++synchronizations_;
  if (watch_ == nullptr)
    return cuda_check(cudaStreamSynchronize(stream_), "waiting for the device");
  wait([&] { return cudaStreamQuery(stream_); }, "waiting for the device");
}

// Without a pause, as CUDA's own waits: they are short, and what follows them is due.
void CudaDevice::wait(const std::function<cudaError_t()>& query, const char* what) {
  const auto start = std::chrono::steady_clock::now();
  cudaError_t status;
  while ((status = query()) == cudaErrorNotReady)
    if (watch_ != nullptr)
      watch_(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  cuda_check(status, what);
}

}  // namespace maxim

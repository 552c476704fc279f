#include "runtime/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/fault.h"

namespace maxim {
namespace {

constexpr int64_t kAlignment = 256;  // also what a GPU's allocator promises

int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

HostDevice::~HostDevice() {
  for (const Block& block : blocks_) munmap(block.pointer, block.bytes);
}

void* HostDevice::allocate(int64_t bytes, const char* purpose) {
  MAXIM_CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
  const int64_t size = round_up(std::max<int64_t>(bytes, 1));
  void* pointer = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pointer == MAP_FAILED)
    fail("no memory for {}: {} bytes wanted: {}", purpose, bytes, std::strerror(errno));
  blocks_.push_back({pointer, size});
  ++allocations_;
  allocated_bytes_ += size;
  return pointer;
}

void HostDevice::free(void* pointer) {
  if (pointer == nullptr) return;
  const auto block = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](const Block& b) { return b.pointer == pointer; });
  MAXIM_CHECK(block != blocks_.end(), "freeing what was not allocated here");
  munmap(block->pointer, block->bytes);
  allocated_bytes_ -= block->bytes;
  blocks_.erase(block);
}

void HostDevice::copy_in(const Tensor& destination, const void* source) {
  if (!destination.empty()) std::memcpy(destination.data(), source, destination.bytes());
}

void HostDevice::copy_out(void* destination, const Tensor& source) {
  if (!source.empty()) std::memcpy(destination, source.data(), source.bytes());
}

void HostDevice::copy(const Tensor& destination, const Tensor& source) {
  MAXIM_CHECK(destination.bytes() == source.bytes(), "{} bytes into {}", source.bytes(),
              destination.bytes());
  if (!source.empty()) std::memmove(destination.data(), source.data(), source.bytes());
}

void HostDevice::zero(const Tensor& tensor) {
  if (!tensor.empty()) std::memset(tensor.data(), 0, tensor.bytes());
}

DeviceTensor::DeviceTensor(Device& device, DType dtype, int64_t size, const char* purpose)
    : device_(&device), view_(device.allocate(size * size_of(dtype), purpose), dtype, size) {}

DeviceTensor::~DeviceTensor() {
  if (device_ != nullptr) device_->free(view_.data());
}

DeviceTensor::DeviceTensor(DeviceTensor&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), view_(std::exchange(other.view_, {})) {}

DeviceTensor& DeviceTensor::operator=(DeviceTensor&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(view_, other.view_);
  return *this;
}

Arena::Arena(Device& device, int64_t capacity, const char* purpose)
    : device_(device), capacity_(round_up(capacity)), purpose_(purpose) {
  base_ = static_cast<char*>(device.allocate(capacity_, purpose));
}

Arena::~Arena() { device_.free(base_); }

Tensor Arena::take(DType dtype, int64_t d0, const char* purpose) {
  return Tensor(take_bytes(d0 * size_of(dtype), purpose), dtype, d0);
}

Tensor Arena::take(DType dtype, int64_t d0, int64_t d1, const char* purpose) {
  return Tensor(take_bytes(d0 * d1 * size_of(dtype), purpose), dtype, d0, d1);
}

int64_t Arena::bytes_of(DType dtype, int64_t elements) {
  return round_up(elements * size_of(dtype));
}

void* Arena::take_bytes(int64_t bytes, const char* purpose) {
  const int64_t size = round_up(bytes);
  if (takes_fault(Fault::failed_alloc))
    fail("MAXIM_FAULT: no memory for {}: {} bytes wanted", purpose, bytes);
  if (size > capacity_ - used_)
    fail("the {} is too small: {} bytes wanted for {}, {} of {} left", purpose_, bytes, purpose,
         capacity_ - used_, capacity_);
  void* pointer = base_ + used_;
  used_ += size;
  peak_ = std::max(peak_, used_);
  return pointer;
}

}  // namespace maxim

// Memory of a backend between the calls of its operations. It grows when an operation wants more
// than ever before, so a training step takes nothing from the device after the first.
#pragma once

#include "runtime/device.h"

namespace maxim {

class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}
  ~Scratch() { device_.free(data_); }
  Scratch(const Scratch&) = delete;

  // Uninitialised; good until the next call.
  void* bytes(int64_t count, const char* purpose) { return floats((count + 3) / 4, purpose); }
  float* floats(int64_t count, const char* purpose) {
    if (count > capacity_) {
      device_.free(data_);
      data_ = nullptr;  // the next line may throw
      capacity_ = 0;
      data_ = static_cast<float*>(device_.allocate(count * 4, purpose));
      capacity_ = count;
    }
    return data_;
  }
  double* doubles(int64_t count, const char* purpose) {
    return reinterpret_cast<double*>(floats(2 * count, purpose));
  }

 private:
  Device& device_;
  float* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace maxim

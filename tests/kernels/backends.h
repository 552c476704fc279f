// The backends that the tests of kernels run on, and device memory for their operands. A test sees
// only Ops and Device, so every backend runs the same tests.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/reference/ragged.h"

namespace maxim_tests {

struct Backend {
  std::string name;
  std::unique_ptr<maxim::Device> device;
  std::unique_ptr<maxim::Ops> ops;
  // Threads that may work in an operation from now on; does nothing where that means nothing.
  std::function<void(int)> set_threads;
};

// All backends of this build: fresh ones, and those that the tests share.
std::vector<Backend> make_backends();
std::vector<Backend>& backends();

// Device memory of one test; freed with it.
class Operands {
 public:
  explicit Operands(maxim::Device& device) : device_(device) {}
  ~Operands();
  Operands(const Operands&) = delete;

  // Copies of host values as [size] or [rows, columns].
  template <class T>
  maxim::Tensor put(const std::vector<T>& values) {
    const auto size = static_cast<int64_t>(values.size());
    const maxim::Tensor t(take(size * sizeof(T)), maxim::DTypeOf<T>::value, size);
    device_.copy_in(t, values.data());
    return t;
  }
  template <class T>
  maxim::Tensor put(const std::vector<T>& values, int64_t rows, int64_t columns) {
    return put(values).reshape(rows, columns);
  }
  maxim::Sequences put(const Ragged& ragged);

  // Outputs full of NaN, so that what an operation forgets to write shows.
  maxim::Tensor output(int64_t size) {
    return put(std::vector<float>(size, std::numeric_limits<float>::quiet_NaN()));
  }
  maxim::Tensor output(int64_t rows, int64_t columns) {
    return output(rows * columns).reshape(rows, columns);
  }
  maxim::Tensor zeros(int64_t size) { return put(std::vector<float>(size)); }
  maxim::Tensor zeros(int64_t rows, int64_t columns) {
    return zeros(rows * columns).reshape(rows, columns);
  }

  template <class T = float>
  std::vector<T> get(const maxim::Tensor& tensor) {
    std::vector<T> values(tensor.size());
    device_.copy_out(values.data(), tensor);
    return values;
  }

 private:
  void* take(int64_t bytes);

  maxim::Device& device_;
  std::vector<void*> blocks_;
};

}  // namespace maxim_tests

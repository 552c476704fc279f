// The backends that the tests of kernels run on, and device memory for their operands. A test sees
// only Ops and Device, so every backend runs the same tests.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/ops.h"
#include "tests/reference/ragged.h"
#include "tests/reference/rounding.h"

namespace maxim_tests {

struct Backend {
  std::string name;
  std::unique_ptr<maxim::Device> device;
  std::unique_ptr<maxim::Ops> ops;
  // Threads that may work in an operation from now on; for the emulated GPU, another order of its
  // threads and blocks. Results may not change.
  std::function<void(int)> set_threads;
  // Whether a token id, target or row beyond its table is refused. A GPU's operands are not read by
  // the host: there, the results are NaN.
  bool checks_indices = true;
  // Element types of activations.
  std::vector<maxim::DType> types = {maxim::DType::f32};
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
  // Floats as `type`, rounded where that is a 16-bit type.
  maxim::Tensor put(const std::vector<float>& values, int64_t rows, int64_t columns,
                    maxim::DType type);

  // Outputs full of NaN, so that what an operation forgets to write shows.
  maxim::Tensor output(int64_t size) {
    return put(std::vector<float>(size, std::numeric_limits<float>::quiet_NaN()));
  }
  maxim::Tensor output(int64_t rows, int64_t columns, maxim::DType type = maxim::DType::f32) {
    return put(std::vector<float>(rows * columns, std::numeric_limits<float>::quiet_NaN()), rows,
               columns, type);
  }
  maxim::Tensor zeros(int64_t size) { return put(std::vector<float>(size)); }
  maxim::Tensor zeros(int64_t rows, int64_t columns) {
    return zeros(rows * columns).reshape(rows, columns);
  }

  // 16-bit floats come back as float.
  template <class T = float>
  std::vector<T> get(const maxim::Tensor& tensor) {
    if constexpr (std::is_same_v<T, float>)
      if (tensor.dtype() != maxim::DType::f32)
        return from_16_bits(tensor.dtype(), get<uint16_t>(tensor));
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

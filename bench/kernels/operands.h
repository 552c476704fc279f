// Device memory for the operands of one shape, and what the host knows of its contents.
#pragma once

#include <initializer_list>
#include <vector>

#include "kernels/ops.h"
#include "tests/reference/ragged.h"

namespace maxim::bench {

using Dims = std::initializer_list<int64_t>;  // one or two

// A shape's operands are too large for the device's memory.
class NoRoom : public Error {
 public:
  using Error::Error;
};

// Whether the device is tests/emulator's: its work is counted, its time says nothing.
bool is_emulated(const Device& device);

// Bytes that operands may take: most of what is free where the memory is the host's, whose
// allocator never refuses; without a limit on a GPU, whose allocator does.
int64_t memory_budget(const Device& device);

// All memory goes when this goes. `type` is that of the activations of the run.
class Operands {
 public:
  Operands(Ops& ops, DType type, int64_t budget) : ops_(ops), type_(type), left_(budget) {}
  ~Operands();
  Operands(const Operands&) = delete;

  Ops& ops() const { return ops_; }
  Device& device() const { return ops_.device(); }
  DType type() const { return type_; }

  // Of type f32, bf16 or f16. Random numbers are uniform in [-scale, scale) and repeat after 2^20.
  // An output is full of NaN, so that what an operation forgets to write shows. Throw NoRoom.
  Tensor random(DType type, Dims dims, uint32_t seed, float scale = 1);
  Tensor filled(DType type, Dims dims, float value);
  Tensor output(DType type, Dims dims);

  // Copies of host values, [size].
  template <class T>
  Tensor put(const std::vector<T>& values) {
    const Tensor t = take(DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
    device().copy_in(t, values.data());
    return t;
  }
  Sequences put(const maxim_tests::Ragged& ragged);
  Tensor take(DType type, Dims dims);  // uninitialised

  // The elements of a tensor of f32, bf16, f16 or u16.
  std::vector<double> get(const Tensor& tensor) const;

 private:
  Tensor repeated(DType type, Dims dims, const std::vector<float>& pattern);

  Ops& ops_;
  DType type_;
  int64_t left_;
  std::vector<void*> blocks_;
};

}  // namespace maxim::bench

// A tensor view: pointer, element type, shape. Row-major and contiguous, at most three dimensions,
// owns nothing; the memory belongs to an Arena, a Device or a std::vector. The pointer may be
// device memory, so only Ops and Device look through it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/error.h"

namespace maxim {

enum class DType : uint8_t { f32, f16, bf16, i32, i64, u32, u16 };

constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::u16:
      return 2;
  }
  return 0;
}

const char* name_of(DType type);  // "f32", …

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::u32;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::u16;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, int64_t d0) : Tensor(data, dtype, 1, {d0, 1, 1}) {}
  Tensor(void* data, DType dtype, int64_t d0, int64_t d1) : Tensor(data, dtype, 2, {d0, d1, 1}) {}
  Tensor(void* data, DType dtype, int64_t d0, int64_t d1, int64_t d2)
      : Tensor(data, dtype, 3, {d0, d1, d2}) {}

  // A view of a host vector as [size] or [rows, columns].
  template <class T>
  static Tensor of(std::vector<T>& v) {
    return Tensor(v.data(), DTypeOf<T>::value, static_cast<int64_t>(v.size()));
  }
  template <class T>
  static Tensor of(std::vector<T>& v, int64_t rows, int64_t columns) {
    MAXIM_CHECK(rows * columns == static_cast<int64_t>(v.size()), "[{}, {}] of {} elements", rows,
                columns, v.size());
    return Tensor(v.data(), DTypeOf<T>::value, rows, columns);
  }

  bool empty() const {
    return size() == 0;
  }  // no elements (a batch of no rows, or an absent operand)
  bool absent() const { return rank_ == 0; }  // an operand that was not given
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t rows() const { return shape_[0]; }
  int64_t cols() const { return shape_[1] * shape_[2]; }  // elements of one row
  int64_t size() const { return rank_ == 0 ? 0 : shape_[0] * cols(); }
  int64_t bytes() const { return size() * size_of(dtype_); }
  void* data() const { return data_; }

  template <class T>
  T* as() const {
    MAXIM_CHECK(DTypeOf<T>::value == dtype_, "tensor is {}, used as {}", name_of(dtype_),
                name_of(DTypeOf<T>::value));
    return static_cast<T*>(data_);
  }

  // Rows [begin, end) of the first dimension.
  Tensor slice(int64_t begin, int64_t end) const {
    MAXIM_CHECK(0 <= begin && begin <= end && end <= rows(), "rows [{}, {}) of {}", begin, end,
                rows());
    Tensor t = *this;
    t.data_ = static_cast<char*>(data_) + begin * cols() * size_of(dtype_);
    t.shape_[0] = end - begin;
    return t;
  }
  // The same elements as [rows, columns].
  Tensor reshape(int64_t rows, int64_t columns) const {
    MAXIM_CHECK(rows * columns == size(), "[{}, {}] of {} elements", rows, columns, size());
    return Tensor(data_, dtype_, rows, columns);
  }

 private:
  Tensor(void* data, DType dtype, int rank, std::array<int64_t, 3> shape)
      : data_(data), dtype_(dtype), rank_(rank), shape_(shape) {}

  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  int rank_ = 0;
  std::array<int64_t, 3> shape_{0, 1, 1};
};

}  // namespace maxim

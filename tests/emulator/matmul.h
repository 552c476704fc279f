// The arithmetic behind cublasLtMatmul.
#pragma once

#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace maxim_emulated {

// An element (row, column) lies at data + row * row_step + column * column_step.
struct MatrixView {
  cudaDataType type = CUDA_R_32F;
  void* data = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t row_step = 1, column_step = 0;

  MatrixView transposed() const { return {type, data, columns, rows, column_step, row_step}; }
};

size_t element_bytes(cudaDataType type);
float load_element(cudaDataType type, const void* data, int64_t index);
void store_element(cudaDataType type, void* data, int64_t index, float value);

// d = alpha a b + beta c + bias, where a [m, k], b [k, n], and bias, if any, has d's type and m
// elements. c is not read if beta = 0. Products are summed in fp32, by ascending k, with inputs
// rounded to 10 bits of mantissa first if `tf32`.
struct Matmul {
  MatrixView a, b, c, d;
  float alpha = 1, beta = 0;
  bool tf32 = false;
  const void* bias = nullptr;
};
void multiply(const Matmul& matmul);

// sums[row] = sum over the columns of `matrix`, in fp32, stored as `type`.
void sum_columns(const MatrixView& matrix, cudaDataType type, void* sums);

}  // namespace maxim_emulated

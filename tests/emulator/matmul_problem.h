// The descriptors of cublasLt.h, and what of a product they describe is refused.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>

struct maxim_emulated_matmul_description {
  int32_t compute = 0, scale = 0;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  int32_t bias_type = -1;  // D's
};
struct maxim_emulated_matrix_layout {
  uint32_t type = 0;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0;
  int32_t batches = 1;
  int64_t batch_stride = 0;
  bool operator==(const maxim_emulated_matrix_layout&) const = default;
};
struct maxim_emulated_matmul_preference {
  uint64_t max_workspace = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};  // A, B, C, D
};

namespace maxim_emulated {

using MatmulDescription = maxim_emulated_matmul_description;
using Layout = maxim_emulated_matrix_layout;

struct Problem {
  const MatmulDescription& description;
  const Layout &a, &b, &c, &d;
  bool transposes_a() const { return description.transpose_a == CUBLAS_OP_T; }
  bool transposes_b() const { return description.transpose_b == CUBLAS_OP_T; }
  uint64_t m() const { return transposes_a() ? a.columns : a.rows; }
  uint64_t n() const { return transposes_b() ? b.rows : b.columns; }
  uint64_t k() const { return transposes_a() ? a.rows : a.columns; }
};

// CUBLAS_STATUS_SUCCESS, or why cuBLASLt refuses the problem; cublasLt.h has the list.
cublasStatus_t check_problem(const Problem& problem);

// Of everything that an algorithm may depend on.
uint64_t hash(const Problem& problem);

// Says on standard error why, and returns the status.
cublasStatus_t refuse_value(const std::string& why);
cublasStatus_t refuse_support(const std::string& why);

}  // namespace maxim_emulated

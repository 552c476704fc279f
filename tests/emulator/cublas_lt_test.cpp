// cublasLt.h against plain loops over small integers, which are exact in every type, and its
// refusals.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"

namespace maxim_tests {
namespace {

using maxim_emulated::Fault;

float a_value(int64_t m, int64_t k) { return static_cast<float>((3 * m + 5 * k) % 5 - 2); }
float b_value(int64_t k, int64_t n) { return static_cast<float>((7 * k + 2 * n) % 5 - 2); }
float c_value(int64_t m, int64_t n) { return static_cast<float>((m + 3 * n) % 7 - 3); }
float bias_value(int64_t m) { return static_cast<float>(m % 9 - 4); }

// One product with everything that can be wrong about it.
struct Case {
  int64_t m = 4, n = 6, k = 8;
  cudaDataType in = CUDA_R_32F, out = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  int32_t order = CUBLASLT_ORDER_COL;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float alpha = 1, beta = 0;
  int64_t padding = 0;     // of the leading dimensions
  int64_t ld_a_fault = 0;  // added to A's leading dimension
  int64_t k_fault = 0;     // added to B's k
  int64_t shift_d = 0;     // D starts so many elements late
  int64_t shrink_b = 0;    // bytes of B's allocation
  bool bias_pointer = true;
  int32_t bias_type = -1;
  int32_t batches = 1;
  uint64_t max_workspace = 1 << 20;
  size_t workspace = 1 << 20;
  uint32_t alignment_d = 256;
  bool algorithm_of_other_shape = false;
};

std::vector<unsigned char> encoded(cudaDataType type, const std::vector<float>& values) {
  std::vector<unsigned char> bytes(values.size() * (type == CUDA_R_32F ? 4 : 2));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == CUDA_R_32F) reinterpret_cast<float*>(bytes.data())[i] = values[i];
    if (type == CUDA_R_16BF)
      reinterpret_cast<nv_bfloat16*>(bytes.data())[i] = nv_bfloat16(values[i]);
    if (type == CUDA_R_16F) reinterpret_cast<half*>(bytes.data())[i] = half(values[i]);
  }
  return bytes;
}
float decoded(cudaDataType type, const std::vector<unsigned char>& bytes, int64_t i) {
  if (type == CUDA_R_32F) return reinterpret_cast<const float*>(bytes.data())[i];
  if (type == CUDA_R_16BF) return float(reinterpret_cast<const nv_bfloat16*>(bytes.data())[i]);
  return float(reinterpret_cast<const half*>(bytes.data())[i]);
}

// A stored matrix of the case: its shape as the layout has it, and what lies where.
struct Stored {
  int64_t rows, columns, ld;
  bool row_major;
  int64_t index(int64_t row, int64_t column) const {
    return row_major ? row * ld + column : column * ld + row;
  }
  int64_t elements() const { return ld * (row_major ? rows : columns); }
};
Stored stored(const Case& c, int64_t rows, int64_t columns) {
  const bool row_major = c.order == CUBLASLT_ORDER_ROW;
  return {rows, columns, (row_major ? columns : rows) + c.padding, row_major};
}

std::vector<unsigned char> fill(const Stored& matrix, cudaDataType type, int32_t batches,
                                const std::function<float(int64_t, int64_t)>& value) {
  std::vector<float> values(matrix.elements() * batches, 99);
  for (int32_t batch = 0; batch < batches; ++batch)
    for (int64_t row = 0; row < matrix.rows; ++row)
      for (int64_t column = 0; column < matrix.columns; ++column)
        values[batch * matrix.elements() + matrix.index(row, column)] =
            value(row, column) + static_cast<float>(batch);
  return encoded(type, values);
}

template <class Attribute, class Set, class Object, class T>
void set(Set function, Object object, Attribute attribute, const T& value) {
  REQUIRE(function(object, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
}

cublasLtMatrixLayout_t layout_of(const Case& c, const Stored& matrix, cudaDataType type) {
  cublasLtMatrixLayout_t layout = nullptr;
  cublasLtMatrixLayoutCreate(&layout, type, matrix.rows, matrix.columns, matrix.ld);
  set(cublasLtMatrixLayoutSetAttribute, layout, CUBLASLT_MATRIX_LAYOUT_ORDER, c.order);
  set(cublasLtMatrixLayoutSetAttribute, layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, c.batches);
  set(cublasLtMatrixLayoutSetAttribute, layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
      matrix.elements());
  return layout;
}

struct AtEnd {
  std::function<void()> run;
  ~AtEnd() { run(); }
};

struct Result {
  cublasStatus_t heuristic, product;
  std::vector<unsigned char> d, bias;
};

Result run(const Case& c) {
  const bool ta = c.transpose_a == CUBLAS_OP_T, tb = c.transpose_b == CUBLAS_OP_T;
  const int64_t b_k = c.k + c.k_fault;
  Stored a = ta ? stored(c, c.k, c.m) : stored(c, c.m, c.k);
  const Stored b = tb ? stored(c, c.n, b_k) : stored(c, b_k, c.n), d = stored(c, c.m, c.n);
  const auto a_bytes = fill(a, c.in, c.batches, [&](int64_t row, int64_t column) {
    return ta ? a_value(column, row) : a_value(row, column);
  });
  auto b_bytes = fill(b, c.in, c.batches, [&](int64_t row, int64_t column) {
    return tb ? b_value(column, row) : b_value(row, column);
  });
  b_bytes.resize(b_bytes.size() - c.shrink_b);
  auto d_bytes = fill(d, c.out, c.batches, c_value);
  d_bytes.insert(d_bytes.begin(), c.shift_d * (c.out == CUDA_R_32F ? 4 : 2), 0);
  std::vector<float> biases(c.epilogue == CUBLASLT_EPILOGUE_BGRADB ? c.n : c.m);
  for (size_t i = 0; i < biases.size(); ++i) biases[i] = bias_value(static_cast<int64_t>(i));
  const DeviceBuffer<unsigned char> a_device(a_bytes), b_device(b_bytes), d_device(d_bytes),
      bias_device(encoded(c.out, biases)), workspace(c.workspace);
  a.ld += c.ld_a_fault;

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&description, c.compute, CUDA_R_32F);
  const auto describe = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    set(cublasLtMatmulDescSetAttribute, description, attribute, value);
  };
  describe(CUBLASLT_MATMUL_DESC_TRANSA, c.transpose_a);
  describe(CUBLASLT_MATMUL_DESC_TRANSB, c.transpose_b);
  describe(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  describe(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, c.bias_type);
  const void* bias = c.bias_pointer ? bias_device.data() : nullptr;
  describe(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  cublasLtMatmulPreferenceCreate(&preference);
  set(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      c.max_workspace);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(cublasLtMatmulPreferenceSetAttribute, preference, attribute, c.alignment_d);
  const cublasLtMatrixLayout_t a_layout = layout_of(c, a, c.in), b_layout = layout_of(c, b, c.in),
                               d_layout = layout_of(c, d, c.out);
  const AtEnd destroy{[=] {
    for (const auto layout : {a_layout, b_layout, d_layout}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
  }};
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  Result result = {};
  result.heuristic = cublasLtMatmulAlgoGetHeuristic(
      handle, description, a_layout, b_layout, d_layout, d_layout, preference, 1, &best, &found);
  REQUIRE(found == (result.heuristic == CUBLAS_STATUS_SUCCESS));
  if (c.algorithm_of_other_shape) best.algo.data[0] ^= 1;
  unsigned char* d_pointer = d_device.data() + c.shift_d * (c.out == CUDA_R_32F ? 4 : 2);
  result.product = cublasLtMatmul(handle, description, &c.alpha, a_device.data(), a_layout,
                                  b_device.data(), b_layout, &c.beta, d_pointer, d_layout,
                                  d_pointer, d_layout, found == 1 ? &best.algo : nullptr,
                                  workspace.data(), c.workspace, test_stream());
  result.d = d_device.to_host();
  result.bias = bias_device.to_host();
  return result;
}

void require_right(const Case& c) {
  const Result result = run(c);
  REQUIRE(result.product == CUBLAS_STATUS_SUCCESS);
  const Stored d = stored(c, c.m, c.n);
  INFO("m " << c.m << " n " << c.n << " k " << c.k << " types " << c.in << " " << c.out
            << " transposes " << c.transpose_a << c.transpose_b << " order " << c.order
            << " epilogue " << c.epilogue << " padding " << c.padding);
  for (int32_t batch = 0; batch < c.batches; ++batch)
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t n = 0; n < c.n; ++n) {
        double right = c.beta * (c_value(m, n) + batch);
        for (int64_t k = 0; k < c.k; ++k)
          right += c.alpha * (a_value(m, k) + batch) * (b_value(k, n) + batch);
        if (c.epilogue == CUBLASLT_EPILOGUE_BIAS) right += bias_value(m);
        INFO("row " << m << " column " << n << " batch " << batch);
        REQUIRE(decoded(c.out, result.d, batch * d.elements() + d.index(m, n)) == right);
      }
  if (c.epilogue == CUBLASLT_EPILOGUE_BGRADA)
    for (int64_t m = 0; m < c.m; ++m) {
      double right = 0;
      for (int64_t k = 0; k < c.k; ++k) right += a_value(m, k);
      REQUIRE(decoded(c.out, result.bias, m) == right);
    }
  if (c.epilogue == CUBLASLT_EPILOGUE_BGRADB)
    for (int64_t n = 0; n < c.n; ++n) {
      double right = 0;
      for (int64_t k = 0; k < c.k; ++k) right += b_value(k, n);
      REQUIRE(decoded(c.out, result.bias, n) == right);
    }
  for (int64_t i = 0; i < d.elements(); ++i) {  // nothing is written between the columns
    const int64_t within = d.row_major ? i % d.ld : i % d.ld;
    if (within >= d.ld - c.padding) REQUIRE(decoded(c.out, result.d, i) == 99);
  }
}

cublasStatus_t status_of(const Case& c) { return run(c).product; }

}  // namespace

TEST_CASE("products of every transposition, type, order and size") {
  for (const int32_t ta : {CUBLAS_OP_N, CUBLAS_OP_T})
    for (const int32_t tb : {CUBLAS_OP_N, CUBLAS_OP_T})
      for (const int32_t order : {CUBLASLT_ORDER_COL, CUBLASLT_ORDER_ROW}) {
        Case c = {.transpose_a = ta, .transpose_b = tb, .order = order, .padding = 3};
        require_right(c);
        c.in = CUDA_R_16BF;
        require_right(c);
        c.out = CUDA_R_16BF;
        require_right(c);
        c.in = c.out = CUDA_R_16F;
        require_right(c);
        c.out = CUDA_R_32F;
        require_right(c);
      }
  for (const int64_t m : {1, 15, 16, 17, 33, 64})
    for (const int64_t n : {1, 5, 6, 7, 13})
      for (const int64_t k : {1, 2, 40}) require_right({.m = m, .n = n, .k = k});
}

TEST_CASE("alpha, beta, batches, epilogues") {
  require_right({.alpha = 2, .beta = 1});
  require_right({.in = CUDA_R_16BF, .alpha = 1, .beta = -3, .padding = 1});
  require_right({.beta = 1, .batches = 3});
  for (const cudaDataType type : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F})
    for (const auto epilogue :
         {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB})
      for (const int32_t transpose : {CUBLAS_OP_N, CUBLAS_OP_T})
        require_right({.in = type,
                       .out = type,
                       .transpose_a = transpose,
                       .transpose_b = transpose,
                       .epilogue = static_cast<uint32_t>(epilogue)});
}

TEST_CASE("TF32 rounds its inputs to 10 bits of mantissa, fp32 does not") {
  // 1 + 2^-11 is halfway between 1 and 1 + 2^-10: it goes to the even one, 1.
  const float in[] = {1 + 0x1p-11f, 1 + 0x1.8p-11f, 1};
  for (const bool tf32 : {false, true}) {
    const DeviceBuffer<float> a(std::vector<float>(in, in + 3)), b(std::vector<float>{1}), d(3);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a_layout, b_layout;
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&description, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                             CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&a_layout, CUDA_R_32F, 3, 1, 3);
    cublasLtMatrixLayoutCreate(&b_layout, CUDA_R_32F, 1, 1, 1);
    const float one = 1, zero = 0;
    REQUIRE(cublasLtMatmul(handle, description, &one, a.data(), a_layout, b.data(), b_layout, &zero,
                           d.data(), a_layout, d.data(), a_layout, nullptr, nullptr, 0,
                           test_stream()) == CUBLAS_STATUS_SUCCESS);
    const std::vector<float> found = d.to_host();
    REQUIRE(found ==
            (tf32 ? std::vector<float>{1, 1 + 0x1p-10f, 1} : std::vector<float>(in, in + 3)));
    cublasLtMatrixLayoutDestroy(a_layout);
    cublasLtMatrixLayoutDestroy(b_layout);
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
  }
}

TEST_CASE("what cuBLASLt refuses is refused") {
  const auto invalid = CUBLAS_STATUS_INVALID_VALUE, unsupported = CUBLAS_STATUS_NOT_SUPPORTED;
  const uint32_t bias = CUBLASLT_EPILOGUE_BIAS;
  REQUIRE(status_of({.ld_a_fault = -1}) == invalid);
  REQUIRE(run({.ld_a_fault = -1}).heuristic == invalid);
  REQUIRE(status_of({.k_fault = 1}) == invalid);
  REQUIRE(status_of({.in = CUDA_R_16BF, .out = CUDA_R_16F}) == unsupported);
  REQUIRE(status_of({.in = CUDA_R_32F, .out = CUDA_R_16F}) == unsupported);
  REQUIRE(status_of({.in = CUDA_R_16BF, .compute = CUBLAS_COMPUTE_32F_FAST_TF32}) == unsupported);
  REQUIRE(status_of({.epilogue = bias, .bias_pointer = false}) == invalid);
  REQUIRE(status_of({.epilogue = bias, .bias_type = CUDA_R_16F}) == unsupported);
  REQUIRE(status_of({.order = CUBLASLT_ORDER_ROW, .epilogue = bias}) == unsupported);
  REQUIRE(status_of({.epilogue = 32}) == unsupported);
  REQUIRE(status_of({.epilogue = CUBLASLT_EPILOGUE_BGRADA, .batches = 2}) == unsupported);
  REQUIRE(status_of({.in = CUDA_R_16BF, .epilogue = CUBLASLT_EPILOGUE_BGRADB}) == unsupported);
  REQUIRE(status_of({.algorithm_of_other_shape = true}) == unsupported);
  REQUIRE(status_of({.workspace = 100}) == invalid);
  REQUIRE(status_of({.max_workspace = 0, .workspace = 100}) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(status_of({.shift_d = 4}) == unsupported);
  REQUIRE(status_of({.shift_d = 4, .alignment_d = 16}) == CUBLAS_STATUS_SUCCESS);
}

TEST_CASE("a matrix that leaves its allocation, as with a wrong leading dimension, is a fault") {
  REQUIRE_THROWS_AS(run({.ld_a_fault = 1}), Fault);
  REQUIRE_THROWS_AS(run({.shrink_b = 1}), Fault);
}

}  // namespace maxim_tests

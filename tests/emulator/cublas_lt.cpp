// cublasLt.h: setting descriptors and queueing products.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "emulated/library.h"
#include "tests/emulator/matmul.h"
#include "tests/emulator/matmul_problem.h"
#include "tests/emulator/streams.h"

struct cublasLtContext {
  int device;
};
namespace maxim_emulated {
namespace {

constexpr uint64_t kWorkspaceBytes = 64 * 1024;  // what a product takes if it may
constexpr uintptr_t kWorkspaceAlignment = 256;

// What cublasLtMatmulAlgo_t holds.
struct Algorithm {
  uint64_t problem;  // hash
  uint64_t workspace_bytes;
  uint32_t alignments[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T>
cublasStatus_t set(T& field, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T))
    return refuse_value(fmt::format("an attribute of {} bytes was given {}", sizeof(T), bytes));
  std::memcpy(&field, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algorithm(const cublasLtMatmulAlgo_t& algo, const Problem& problem,
                               const void* const (&matrices)[4], size_t workspace_bytes) {
  Algorithm algorithm;
  std::memcpy(&algorithm, &algo, sizeof algorithm);
  if (algorithm.problem != hash(problem))
    return refuse_support("the algorithm was found for another problem");
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<uintptr_t>(matrices[i]) % algorithm.alignments[i] != 0)
      return refuse_support(fmt::format("{} is not aligned to {} bytes, as the preference has it",
                                        "ABCD"[i], algorithm.alignments[i]));
  if (workspace_bytes < algorithm.workspace_bytes)
    return refuse_value(fmt::format("the algorithm needs {} bytes of workspace, not {}",
                                    algorithm.workspace_bytes, workspace_bytes));
  return CUBLAS_STATUS_SUCCESS;
}

MatrixView view(const Layout& layout, const void* data, int64_t batch, bool transpose) {
  const auto type = static_cast<cudaDataType>(layout.type);
  const bool by_column = layout.order == CUBLASLT_ORDER_COL;
  char* first = static_cast<char*>(const_cast<void*>(data)) +
                batch * layout.batch_stride * static_cast<int64_t>(element_bytes(type));
  const MatrixView matrix = {type,
                             first,
                             static_cast<int64_t>(layout.rows),
                             static_cast<int64_t>(layout.columns),
                             by_column ? 1 : layout.ld,
                             by_column ? layout.ld : 1};
  return transpose ? matrix.transposed() : matrix;
}

void check_extent(const Layout& layout, const void* data) {
  for (int64_t batch : {0, layout.batches - 1}) {
    const MatrixView matrix = view(layout, data, batch, false);
    const int64_t elements =
        (matrix.rows - 1) * matrix.row_step + (matrix.columns - 1) * matrix.column_step + 1;
    require_device_memory("cublasLtMatmul", matrix.data, elements * element_bytes(matrix.type));
  }
}

void check_bias_extent(const Problem& problem) {
  const MatmulDescription& description = problem.description;
  if (description.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
  const uint64_t elements =
      description.epilogue == CUBLASLT_EPILOGUE_BGRADB ? problem.n() : problem.m();
  require_device_memory("cublasLtMatmul", description.bias,
                        elements * element_bytes(static_cast<cudaDataType>(problem.d.type)));
}

}  // namespace
}  // namespace maxim_emulated

using namespace maxim_emulated;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext{current_device()};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return 130000; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown status";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  *description = new maxim_emulated_matmul_description{.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return set(description->compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return set(description->scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return set(description->pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(description->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(description->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(description->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(description->bias_type, value, bytes);
  }
  return refuse_value("an unknown attribute of a product");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *layout = new maxim_emulated_matrix_layout{
      .type = static_cast<uint32_t>(type), .rows = rows, .columns = columns, .ld = ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return set(layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return set(layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return set(layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return set(layout->columns, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return set(layout->ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(layout->batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(layout->batch_stride, value, bytes);
  }
  return refuse_value("an unknown attribute of a layout");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new maxim_emulated_matmul_preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  uint32_t* alignments = preference->alignments;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference->max_workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(alignments[3], value, bytes);
  }
  return refuse_value("an unknown attribute of a preference");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  if (handle == nullptr || preference == nullptr || requested < 1 || results == nullptr)
    return refuse_value("a heuristic needs a handle, a preference and room for its results");
  const Problem problem = {*description, *a, *b, *c, *d};
  *found = 0;
  if (const auto status = check_problem(problem)) return status;
  Algorithm algorithm = {.problem = hash(problem),
                         .workspace_bytes = std::min(preference->max_workspace, kWorkspaceBytes),
                         .alignments = {}};
  std::ranges::copy(preference->alignments, algorithm.alignments);
  results[0] = {.algo = {},
                .workspaceSize = algorithm.workspace_bytes,
                .state = CUBLAS_STATUS_SUCCESS,
                .wavesCount = 1,
                .reserved = {}};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const auto lock = lock_device();
  if (handle == nullptr || alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr ||
      c == nullptr || d == nullptr)
    return refuse_value("a product needs a handle, alpha, beta, A, B, C and D");
  const Problem problem = {*description, *a_layout, *b_layout, *c_layout, *d_layout};
  if (const auto status = check_problem(problem)) return status;
  if (description->epilogue != CUBLASLT_EPILOGUE_DEFAULT && description->bias == nullptr)
    return refuse_value("an epilogue with a bias needs its pointer");
  if (c == d && !(*c_layout == *d_layout)) return refuse_value("C is D, but their layouts differ");
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    return refuse_value("the workspace is not aligned to 256 bytes");
  if (algo != nullptr)
    if (const auto status = check_algorithm(*algo, problem, {a, b, c, d}, workspace_bytes))
      return status;
  if (Streams::instance().check(stream) != cudaSuccess || stream->device != handle->device)
    return refuse_value("the stream does not exist on the handle's device");
  check_extent(*a_layout, a);
  check_extent(*b_layout, b);
  check_extent(*c_layout, c);
  check_extent(*d_layout, d);
  check_bias_extent(problem);
  const size_t scribbled = std::min<size_t>(workspace_bytes, kWorkspaceBytes);
  if (scribbled > 0) require_device_memory("cublasLtMatmul", workspace, scribbled);

  const auto run = [=, alpha = *static_cast<const float*>(alpha),
                    beta = *static_cast<const float*>(beta), description = *description,
                    a_layout = *a_layout, b_layout = *b_layout, c_layout = *c_layout,
                    d_layout = *d_layout] {
    const Problem problem = {description, a_layout, b_layout, c_layout, d_layout};
    if (scribbled > 0) std::memset(workspace, 0xff, scribbled);
    const bool adds_bias = description.epilogue == CUBLASLT_EPILOGUE_BIAS;
    for (int64_t batch = 0; batch < d_layout.batches; ++batch)
      multiply({.a = view(a_layout, a, batch, problem.transposes_a()),
                .b = view(b_layout, b, batch, problem.transposes_b()),
                .c = view(c_layout, c, batch, false),
                .d = view(d_layout, d, batch, false),
                .alpha = alpha,
                .beta = beta,
                .tf32 = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32,
                .bias = adds_bias ? description.bias : nullptr});
    const auto type = static_cast<cudaDataType>(d_layout.type);
    if (description.epilogue == CUBLASLT_EPILOGUE_BGRADA)
      sum_columns(view(a_layout, a, 0, problem.transposes_a()), type, description.bias);
    if (description.epilogue == CUBLASLT_EPILOGUE_BGRADB)
      sum_columns(view(b_layout, b, 0, problem.transposes_b()).transposed(), type,
                  description.bias);
  };
  enqueue_library_call("cublasLtMatmul", stream, run);
  return CUBLAS_STATUS_SUCCESS;
}

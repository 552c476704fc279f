#include "tests/emulator/matmul_problem.h"

#include <fmt/format.h>

#include <cstdio>

namespace maxim_emulated {
namespace {

cublasStatus_t refuse(cublasStatus_t status, const std::string& why) {
  std::fprintf(stderr, "emulated cuBLASLt refuses (%s): %s\n", cublasLtGetStatusName(status),
               why.c_str());
  return status;
}
std::string shape(const Layout& layout) {
  return fmt::format("{} x {} (ld {})", layout.rows, layout.columns, layout.ld);
}

cublasStatus_t check_layout(const char* name, const Layout& layout) {
  if (layout.rows == 0 || layout.columns == 0)
    return refuse_value(fmt::format("{} is empty: {}", name, shape(layout)));
  if (layout.order != CUBLASLT_ORDER_COL && layout.order != CUBLASLT_ORDER_ROW)
    return refuse_support(fmt::format("{} has order {}", name, layout.order));
  const uint64_t least = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
  if (layout.ld < 0 || static_cast<uint64_t>(layout.ld) < least)
    return refuse_value(
        fmt::format("the leading dimension of {} is too small: {}", name, shape(layout)));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_types(const Problem& problem) {
  const auto& [description, a, b, c, d] = problem;
  const bool tf32 = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!tf32 && description.compute != CUBLAS_COMPUTE_32F)
    return refuse_support(fmt::format("compute type {}", description.compute));
  if (description.scale != CUDA_R_32F || description.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
    return refuse_support("alpha and beta are fp32 numbers of the host");
  const bool known = a.type == CUDA_R_32F || a.type == CUDA_R_16BF || a.type == CUDA_R_16F;
  if (!known || a.type != b.type || c.type != d.type ||
      (d.type != a.type && d.type != CUDA_R_32F) || (tf32 && a.type != CUDA_R_32F))
    return refuse_support(fmt::format("types {}, {}, {}, {} of A, B, C, D with compute type {}",
                                      a.type, b.type, c.type, d.type, description.compute));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_shapes(const Problem& problem) {
  const auto& [description, a, b, c, d] = problem;
  const uint64_t b_depth = problem.transposes_b() ? b.columns : b.rows;
  const auto is_m_by_n = [&](const Layout& layout) {
    return layout.rows == problem.m() && layout.columns == problem.n();
  };
  if (problem.k() != b_depth || !is_m_by_n(c) || !is_m_by_n(d))
    return refuse_value(fmt::format("shapes: op(A) {} x {}, op(B) {} x {}, C {}, D {}", problem.m(),
                                    problem.k(), b_depth, problem.n(), shape(c), shape(d)));
  if (a.batches < 1 || a.batches != b.batches || a.batches != c.batches || a.batches != d.batches)
    return refuse_value("A, B, C and D differ in their number of batches");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_epilogue(const Problem& problem) {
  const auto& [description, a, b, c, d] = problem;
  if (description.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  const bool gradient = description.epilogue == CUBLASLT_EPILOGUE_BGRADA ||
                        description.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (!gradient && description.epilogue != CUBLASLT_EPILOGUE_BIAS)
    return refuse_support(fmt::format("epilogue {}", description.epilogue));
  if (description.bias_type != -1 && static_cast<uint32_t>(description.bias_type) != d.type)
    return refuse_support(
        fmt::format("a bias of type {} with D of type {}", description.bias_type, d.type));
  // Whether cuBLASLt has it is not documented, so the way around it is tested.
  if (gradient && a.type != d.type)
    return refuse_support(
        fmt::format("a bias gradient of type {} of operands of {}", d.type, a.type));
  if (gradient && d.batches > 1) return refuse_support("a bias gradient of batches");
  for (const Layout* layout : {&a, &b, &c, &d})
    if (layout->order == CUBLASLT_ORDER_ROW)
      return refuse_support("an epilogue with a row-major matrix");
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t refuse_value(const std::string& why) {
  return refuse(CUBLAS_STATUS_INVALID_VALUE, why);
}
cublasStatus_t refuse_support(const std::string& why) {
  return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
}

cublasStatus_t check_problem(const Problem& problem) {
  if (const auto status = check_layout("A", problem.a)) return status;
  if (const auto status = check_layout("B", problem.b)) return status;
  if (const auto status = check_layout("C", problem.c)) return status;
  if (const auto status = check_layout("D", problem.d)) return status;
  if (const auto status = check_types(problem)) return status;
  if (const auto status = check_shapes(problem)) return status;
  return check_epilogue(problem);
}

// FNV-1a over everything that an algorithm may depend on.
uint64_t hash(const Problem& problem) {
  uint64_t value = 0xcbf29ce484222325u;
  const auto add = [&](uint64_t field) { value = (value ^ field) * 0x100000001b3u; };
  const MatmulDescription& description = problem.description;
  for (const auto field : {description.compute, description.transpose_a, description.transpose_b})
    add(static_cast<uint64_t>(field));
  add(description.epilogue);
  for (const Layout* layout : {&problem.a, &problem.b, &problem.c, &problem.d})
    for (const uint64_t field :
         {uint64_t{layout->type}, static_cast<uint64_t>(layout->order), layout->rows,
          layout->columns, static_cast<uint64_t>(layout->ld),
          static_cast<uint64_t>(layout->batches), static_cast<uint64_t>(layout->batch_stride)})
      add(field);
  return value;
}

}  // namespace maxim_emulated

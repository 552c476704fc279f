// Matrix products on cuBLASLt: c = a b (+ bias) or c += a b, each operand possibly transposed.
//
// cuBLASLt's matrices are column-major: a row-major [rows, cols] is its column-major [cols, rows],
// so c = a b is computed as c^T = b^T a^T with b as cuBLASLt's first operand. Sums are f32; f32
// operands are multiplied as f32 unless TF32 was asked for. The bias goes through the epilogue,
// which adds it to every column of c^T, that is to every row of c; accumulation is beta = 1.
// Column sums of a (the gradient of a bias beside that of its weight) come from the bias-gradient
// epilogue, which overwrites: they are added to what was there by a small kernel. Where cuBLASLt
// has no algorithm for it, a is read a second time (add_column_sums). The algorithm is chosen once
// a shape by cuBLASLt's heuristic, with one workspace of 32 MiB (what Hopper's kernels may want).
// Packed batches bring new numbers of rows, so a step asks for the shapes that no step before had;
// kMostPlans bounds what is remembered. 2 M N K FLOPs; each operand once.
#include <algorithm>
#include <bit>

#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/floats.cuh"

namespace maxim {
namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20;
constexpr size_t kMostPlans = 4096;  // some 20 shapes a number of rows

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail("{}: cuBLASLt error {}", what, static_cast<int>(status));
}

cudaDataType_t type_of(const Tensor& t) {
  switch (t.dtype()) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      fail("gemm: an operand of type {}", name_of(t.dtype()));
  }
}

// log2 of the bytes that a pointer is aligned to, at most 8: what cuBLASLt takes for granted unless
// it is told less. Weights and working memory lie at multiples of 64 bytes.
int alignment_of(const Tensor& t) {
  return std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(t.data())));
}

__global__ void add_kernel(float* out, const float* x, int64_t size) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < size) out[i] += x[i];
}

// c[i, ·] = bias: the product over nothing.
template <class T>
__global__ void fill_rows_kernel(T* c, const T* bias, int64_t rows, int64_t columns) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < rows * columns) c[i] = bias[i % columns];
}

}  // namespace

struct CublasLt::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;  // as row-major operands
  cublasLtMatmulAlgo_t algorithm{};
  bool with_sums = false;

  ~Plan() {
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(operation);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
};

CublasLt::CublasLt(CudaDevice& device, bool tf32) : device_(device), tf32_(tf32) {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
  workspace_ = device.allocate(kWorkspace, "cuBLASLt's workspace");
}

CublasLt::~CublasLt() {
  plans_.clear();
  device_.free(workspace_);
  cublasLtDestroy(handle_);
}

std::string CublasLt::name() const {
  const size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}{}", version / 10000, version / 100 % 100, version % 100,
                     tf32_ ? " with TF32" : "");
}

CublasLt::Plan& CublasLt::plan_of(const GemmArgs& args, const GemmShape& s, bool with_sums) {
  const cudaDataType_t type = type_of(args.a), result = type_of(args.c);
  const int alignments[] = {alignment_of(args.b), alignment_of(args.a), alignment_of(args.c)};
  const int64_t kinds = args.transpose_a | args.transpose_b << 1 | !args.bias.absent() << 3 |
                        type << 4 | result << 12 | alignments[0] << 20 | alignments[1] << 24 |
                        int64_t{alignments[2]} << 28 | int64_t{with_sums} << 32;
  const Key key{s.m, s.n, s.k, kinds};
  if (const auto known = plans_.find(key); known != plans_.end()) return *known->second;
  if (plans_.size() >= kMostPlans) plans_.clear();

  auto plan = std::make_unique<Plan>();
  const bool fast = tf32_ && type == CUDA_R_32F;
  check(cublasLtMatmulDescCreate(
            &plan->operation, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  plan->set(CUBLASLT_MATMUL_DESC_TRANSA, operation(args.transpose_b));
  plan->set(CUBLASLT_MATMUL_DESC_TRANSB, operation(args.transpose_a));
  if (!args.bias.absent()) {
    plan->set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    plan->set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(args.bias));
    const void* bias = args.bias.data();
    plan->set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const auto layout = [](cublasLtMatrixLayout_t& out, const Tensor& t) {
    const auto rows = static_cast<uint64_t>(t.rows()), columns = static_cast<uint64_t>(t.cols());
    check(cublasLtMatrixLayoutCreate(&out, type_of(t), columns, rows, t.cols()),
          "cublasLtMatrixLayoutCreate");
  };
  layout(plan->a, args.a);
  layout(plan->b, args.b);
  layout(plan->c, args.c);

  if (with_sums) {  // of cuBLASLt's second operand
    plan->set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
    plan->set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    plan->with_sums = find_algorithm(*plan, alignments);
    if (!plan->with_sums) plan->set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  }
  if (!plan->with_sums && !find_algorithm(*plan, alignments))
    fail("cuBLASLt has no algorithm for [{}, {}] x [{}, {}] of {} into {}", s.m, s.k, s.k, s.n,
         name_of(args.a.dtype()), name_of(args.c.dtype()));
  return *(plans_[key] = std::move(plan));
}

bool CublasLt::find_algorithm(Plan& plan, const int (&alignments)[3]) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const size_t workspace = kWorkspace;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace, sizeof workspace);
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t attribute, int alignment) {
    const uint32_t bytes = 1u << alignment;
    cublasLtMatmulPreferenceSetAttribute(preference, attribute, &bytes, sizeof bytes);
  };
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[0]);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[1]);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan.operation, plan.b, plan.a, plan.c, plan.c, preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return false;
  plan.algorithm = found.algo;
  return true;
}

bool CublasLt::multiply(const GemmArgs& args, const GemmShape& shape, float* sums) {
  const Tensor &a = args.a, &b = args.b, &c = args.c;
  Plan& plan = plan_of(args, shape, sums != nullptr);
  const void* vector = args.bias.absent() ? sums : args.bias.data();
  if (vector != nullptr) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  const float alpha = 1, beta = args.accumulate ? 1 : 0;
  check(cublasLtMatmul(handle_, plan.operation, &alpha, b.data(), plan.b, a.data(), plan.a, &beta,
                       c.data(), plan.c, c.data(), plan.c, &plan.algorithm, workspace_,
                       static_cast<size_t>(kWorkspace), device_.stream()),
        "cublasLtMatmul");
  return plan.with_sums;
}

// cuBLASLt has no product over nothing: c = bias, or 0, or as it was.
void CudaOps::gemm_over_nothing(const GemmArgs& args) {
  if (args.accumulate) return;
  if (args.bias.absent()) return device_.zero(args.c);
  const int64_t rows = args.c.rows(), columns = args.c.cols();
  for_dtype(args.c.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch(*this,
           {.name = "fill_rows",
            .grid = {ceil_div(rows * columns, 256), 1, 1},
            .block = 256,
            .bytes = static_cast<double>(args.c.bytes())},
           fill_rows_kernel<T>, args.c.as<T>(), args.bias.as<T>(), rows, columns);
  });
}

void CudaOps::gemm(const GemmArgs& args) {
  const GemmShape s = shape_of(args);
  const bool nothing = args.c.empty() || s.k == 0, wants_sums = !args.a_sums.absent();
  bool summed = false;
  float* sums = wants_sums ? scratch_.floats(s.m, "column sums") : nullptr;
  if (nothing) {
    if (!args.c.empty()) gemm_over_nothing(args);
  } else {
    summed = cublas_lt_->multiply(args, s, sums);
    count({.name = "gemm",
           .bytes = static_cast<double>(args.a.bytes() + args.b.bytes() +
                                        args.c.bytes() * (args.accumulate ? 2 : 1)),
           .flops = 2.0 * static_cast<double>(args.c.size()) * static_cast<double>(s.k)});
  }
  if (!wants_sums) return;
  if (!summed) return add_column_sums(args.a_sums, args.a);
  launch(*this,
         {.name = "add",
          .grid = {ceil_div(s.m, 256), 1, 1},
          .block = 256,
          .bytes = 3.0 * sizeof(float) * static_cast<double>(s.m)},
         add_kernel, args.a_sums.as<float>(), sums, s.m);
}

std::string CudaOps::gemm_library() const { return cublas_lt_->name(); }

}  // namespace maxim

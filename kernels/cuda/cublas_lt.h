// cuBLASLt for CudaOps::gemm: one handle, one workspace, one algorithm a shape
// and alignment of the operands.
#pragma once

#include <cublasLt.h>

#include <map>
#include <tuple>

#include "kernels/checks.h"
#include "runtime/cuda_device.h"

namespace maxim {

class CublasLt {
 public:
  CublasLt(CudaDevice& device, bool tf32);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;

  std::string name() const;  // "cuBLASLt 13.1.0"
  // As Ops::gemm but for args.a_sums; every operand f32, or a and b of one 16-bit type and c of
  // that type or f32. With `sums`, f32 [M] on the device, true when the column sums of a were
  // written there: cuBLASLt may have no algorithm that does so.
  bool multiply(const GemmArgs& args, const GemmShape& shape, float* sums);

 private:
  struct Plan;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // m, n, k, kinds and alignments
  Plan& plan_of(const GemmArgs& args, const GemmShape& shape, bool with_sums);
  bool find_algorithm(Plan& plan, const int (&alignments)[3]);

  CudaDevice& device_;
  bool tf32_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace maxim

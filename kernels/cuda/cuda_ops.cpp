#include "kernels/cuda/cuda_ops.h"

#include "kernels/cuda/cublas_lt.h"

namespace maxim {

CudaOps::CudaOps(CudaDevice& device, bool tf32)
    : device_(device), cublas_lt_(std::make_unique<CublasLt>(device, tf32)) {}

CudaOps::~CudaOps() = default;

void CudaOps::count(const KernelPlan& plan) {
  KernelCount& count = counts_[plan.name];
  ++count.launches;
  count.bytes += plan.bytes;
  count.flops += plan.flops;
}

}  // namespace maxim

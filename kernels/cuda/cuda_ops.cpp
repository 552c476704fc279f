#include "kernels/cuda/cuda_ops.h"

#include "kernels/cuda/backend.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/row_plans.h"

namespace maxim {

namespace {

constexpr int64_t kTickets = 4096;

}  // namespace

CudaOps::CudaOps(CudaDevice& device, bool tf32)
    : device_(device),
      tickets_(device, DType::i32, kTickets, "counters of blocks"),
      cublas_lt_(std::make_unique<CublasLt>(device, tf32)) {
  device.zero(tickets_.view());
}

unsigned* CudaOps::tickets(int64_t count) {
  MAXIM_CHECK(count <= kTickets, "{} counters, {} at most", count, kTickets);
  return static_cast<unsigned*>(tickets_.view().data());
}

CudaOps::~CudaOps() = default;

void CudaOps::count(const KernelPlan& plan) {
  KernelCount& count = counts_[plan.name];
  ++count.launches;
  count.bytes += plan.bytes;
  count.flops += plan.flops;
}

int gpu_count() { return cuda_device_count(); }

std::string why_no_gpu() {
  std::string reason;
  cuda_device_count(&reason);
  return reason;
}

Backend make_cuda_backend(int index, bool tf32) {
  auto device = std::make_unique<CudaDevice>(index);
  auto ops = std::make_unique<CudaOps>(*device, tf32);
  return {std::move(device), std::move(ops), most_row_columns(2), most_row_columns(1)};
}

}  // namespace maxim

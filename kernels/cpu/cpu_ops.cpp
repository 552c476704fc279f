#include "kernels/cpu/cpu_ops.h"

#include "kernels/cpu/blas.h"
#include "runtime/log.h"

namespace maxim {

CpuOps::CpuOps(HostDevice& device) : device_(device), partial_sums_(device) {
  if (!blas().warning.empty()) log_warning("{}", blas().warning);
}

CpuOps::~CpuOps() = default;

std::unique_ptr<Ops> make_cpu_ops(HostDevice& device) { return std::make_unique<CpuOps>(device); }

}  // namespace maxim

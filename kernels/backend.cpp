#include "kernels/backend.h"

#include "runtime/log.h"
#if MAXIM_CUDA
#include "kernels/cuda/backend.h"
#endif

namespace maxim {
namespace {

Backend make_cpu_backend() {
  auto device = std::make_unique<HostDevice>();
  auto ops = make_cpu_ops(*device);
  return {std::move(device), std::move(ops)};
}

#if !MAXIM_CUDA
std::string why_no_gpu() { return "this build has no CUDA backend"; }
Backend make_cuda_backend(int, bool) { fail_input("--device cuda: {}", why_no_gpu()); }
#endif

}  // namespace

Backend make_backend(const std::string& name, bool tf32) {
  if (name == "cpu") return make_cpu_backend();
  const std::string reason = why_no_gpu();
  if (reason.empty()) return make_cuda_backend(0, tf32);
  if (name == "cuda") fail_input("--device cuda: {}", reason);
  MAXIM_CHECK(name == "auto", "a device {}", name);
  if (MAXIM_CUDA) log_info("running on the CPU: {}", reason);
  return make_cpu_backend();
}

}  // namespace maxim

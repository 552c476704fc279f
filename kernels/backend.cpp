#include "kernels/backend.h"

#include "runtime/log.h"
#if MAXIM_CUDA
#include "kernels/cuda/backend.h"
#endif

namespace maxim {
namespace {

Backend make_cpu_backend(bool tf32) {
  if (tf32) fail_input("--tf32 needs a GPU; this run is on the CPU");
  auto device = std::make_unique<HostDevice>();
  auto ops = make_cpu_ops(*device);
  return {std::move(device), std::move(ops)};
}

#if !MAXIM_CUDA
std::string why_no_gpu() { return "this build has no CUDA backend"; }
int gpu_count() { return 0; }
Backend make_cuda_backend(int, bool) { fail_input("--device cuda: {}", why_no_gpu()); }
#endif

}  // namespace

Backend make_backend(const std::string& name, bool tf32, int local_rank) {
  if (name == "cpu") return make_cpu_backend(tf32);
  const std::string reason = why_no_gpu();
  if (reason.empty()) {
    const int gpus = gpu_count();
    if (gpus > 1 && local_rank >= gpus)
      fail_input(
          "--device {}: this is number {} of the ranks on this host (from 0), which has {} GPUs: "
          "start at most one rank a GPU, or use --device cpu",
          name, local_rank, gpus);
    return make_cuda_backend(gpus > 1 ? local_rank : 0, tf32);
  }
  if (name == "cuda") fail_input("--device cuda: {}", reason);
  MAXIM_CHECK(name == "auto", "a device {}", name);
  if (MAXIM_CUDA) log_info("running on the CPU: {}", reason);
  return make_cpu_backend(tf32);
}

}  // namespace maxim

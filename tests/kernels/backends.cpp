#include "tests/kernels/backends.h"

#include <omp.h>

#if MAXIM_CUDA
#include "kernels/cuda/cuda_ops.h"
#if __has_include("emulated/emulator.h")
#include "emulated/emulator.h"
#endif
#endif

namespace maxim_tests {
namespace {

#if MAXIM_CUDA
void set_cuda_order([[maybe_unused]] int order) {
#if __has_include("emulated/emulator.h")
  maxim_emulated::set_seed(order);
#endif
}

Backend cuda_backend() {
  auto device = std::make_unique<maxim::CudaDevice>(0);
  auto ops = std::make_unique<maxim::CudaOps>(*device, false);
  return {.name = "cuda",
          .device = std::move(device),
          .ops = std::move(ops),
          .set_threads = set_cuda_order,
          .checks_indices = false,
          .types = {maxim::DType::f32, maxim::DType::bf16, maxim::DType::f16}};
}
#endif

}  // namespace

std::vector<Backend> make_backends() {
  std::vector<Backend> list;
  auto host = std::make_unique<maxim::HostDevice>();
  auto ops = maxim::make_cpu_ops(*host);
  list.push_back(
      {.name = "cpu", .device = std::move(host), .ops = std::move(ops), .set_threads = [](int n) {
         omp_set_num_threads(n);
       }});
#if MAXIM_CUDA
  if (maxim::cuda_device_count() > 0) list.push_back(cuda_backend());
#endif
  return list;
}

std::vector<Backend>& backends() {
  static std::vector<Backend> shared = make_backends();
  return shared;
}

Operands::~Operands() {
  for (void* block : blocks_) device_.free(block);
}

void* Operands::take(int64_t bytes) {
  blocks_.push_back(device_.allocate(bytes, "a test operand"));
  return blocks_.back();
}

maxim::Tensor Operands::put(const std::vector<float>& values, int64_t rows, int64_t columns,
                            maxim::DType type) {
  if (type == maxim::DType::f32) return put(values, rows, columns);
  const maxim::Tensor bits = put(to_16_bits(type, values));
  return maxim::Tensor(bits.data(), type, rows, columns);
}

maxim::Sequences Operands::put(const Ragged& r) {
  maxim::Sequences s;
  s.token_ids = put(r.token_ids);
  s.positions = put(r.positions);
  s.sequence_of = put(r.sequence_of);
  s.offsets = put(r.offsets);
  s.key_counts = put(r.key_counts);
  s.random_rows = put(r.random_rows);
  s.random_columns = put(r.random_columns);
  s.scored_rows = put(r.scored_rows);
  s.scored_offsets = put(r.scored_offsets);
  s.longest = r.longest;
  return s;
}

}  // namespace maxim_tests

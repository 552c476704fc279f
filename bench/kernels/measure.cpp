#include "bench/kernels/measure.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace maxim::bench {
namespace {

constexpr double kLeastSeconds = 1e-3;

// Beyond any cache: an H200 has 50 MB, a server's CPU up to 1 GB but not for one core's copy.
constexpr int64_t kCopyBytes = int64_t{256} << 20;
// A square product is large when it takes this long, or at 8,192: 1.1 TFLOP.
constexpr double kLongProduct = 0.05;
constexpr int64_t kLeastProduct = 1024, kMostProduct = 8192;

// Seconds of `calls` calls.
double seconds_of(Device& device, const Problem& problem, int64_t calls) {
  if (problem.restore) problem.restore();
  device.synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) problem.call();
  device.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// On a CPU one thread's copy does not use the memory up: each copies a part.
void copy_in_parts(Device& device, const Tensor& to, const Tensor& from) {
  const int parts = device.name() == "cpu" ? omp_get_max_threads() : 1;
#pragma omp parallel for num_threads(parts)
  for (int i = 0; i < parts; ++i) {
    const int64_t begin = to.size() * i / parts, end = to.size() * (i + 1) / parts;
    device.copy(to.slice(begin, end), from.slice(begin, end));
  }
}

Timing measure_product(Ops& ops, DType type, int64_t size, int repetitions) {
  Operands o(ops, type, memory_budget(ops.device()));
  const GemmArgs args{.c = o.output(type, {size, size}),
                      .a = o.random(type, {size, size}, 1),
                      .b = o.random(type, {size, size}, 2)};
  return measure(ops.device(), {.call = [&] { ops.gemm(args); }, .expected = {}}, repetitions);
}

}  // namespace

Timing measure(Device& device, const Problem& problem, int repetitions) {
  seconds_of(device, problem, 1);  // takes scratch, chooses algorithms, touches pages
  int64_t calls = 1;
  for (double seconds; (seconds = seconds_of(device, problem, calls)) < kLeastSeconds;)
    calls = std::max(2 * calls, static_cast<int64_t>(std::ceil(1.2 * kLeastSeconds / seconds *
                                                               static_cast<double>(calls))));
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i)
    times.push_back(seconds_of(device, problem, calls) / static_cast<double>(calls));
  std::sort(times.begin(), times.end());
  const double middle = (times[times.size() / 2] + times[(times.size() - 1) / 2]) / 2;
  return {.seconds = middle, .spread = (times.back() - times.front()) / middle};
}

Limits measure_limits(Ops& ops, DType type, int repetitions) {
  Limits limits{.copy_bytes = kCopyBytes, .gemm_size = kLeastProduct};
  {
    Operands o(ops, type, memory_budget(ops.device()));
    const Tensor to = o.filled(DType::f32, {kCopyBytes / 4}, 1);
    const Tensor from = o.filled(DType::f32, {kCopyBytes / 4}, 2);
    const Problem copy{.call = [&] { copy_in_parts(ops.device(), to, from); }, .expected = {}};
    limits.copy_rate = 2 * kCopyBytes / measure(ops.device(), copy, repetitions).seconds;
  }
  double seconds = measure_product(ops, type, limits.gemm_size, 1).seconds;
  while (seconds < kLongProduct && limits.gemm_size < kMostProduct) {
    limits.gemm_size *= 2;
    seconds = measure_product(ops, type, limits.gemm_size, 1).seconds;
  }
  seconds = measure_product(ops, type, limits.gemm_size, repetitions).seconds;
  limits.gemm_rate = 2 * std::pow(static_cast<double>(limits.gemm_size), 3) / seconds;
  return limits;
}

KernelCount count(Ops& ops, const Problem& problem) {
  if (problem.restore) problem.restore();
  ops.reset_counts();
  problem.call();
  ops.device().synchronize();
  KernelCount sum;
  for (const auto& [name, kernel] : ops.counts()) {
    sum.launches += kernel.launches;
    sum.bytes += kernel.bytes;
    sum.flops += kernel.flops;
  }
  ops.reset_counts();
  return sum;
}

}  // namespace maxim::bench

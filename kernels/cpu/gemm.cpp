// Matrix products on OpenBLAS: c = a b (+ bias) or c += a b, each operand possibly transposed.
//
// A grid of threads, one part of c each, cut the same way for the same shape and number of threads,
// so bits repeat. The bias is written into c first and the product added to it, which costs
// nothing: OpenBLAS zeroes c before it adds the product anyway. 2 M N K FLOPs.
#include <omp.h>

#include <algorithm>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu_ops.h"

namespace maxim {
namespace {

// Parts begin at multiples of 16 rows and columns: the register tile of the AVX-512 kernels.
constexpr int64_t kTile = 16;
// Below 2^20 FLOPs (10 us on one core) waking the other threads costs more than they save.
constexpr double kLeastParallelFlops = 1 << 20;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

Range part_of(int64_t size, int part, int parts) {
  const int64_t tiles = (size + kTile - 1) / kTile;
  return {std::min(size, tiles * part / parts * kTile),
          std::min(size, tiles * (part + 1) / parts * kTile)};
}

// How many parts of rows a grid of `threads` parts has. OpenBLAS repacks both operands in every
// part, so the best grid has the least rows + columns a part.
int row_parts(int64_t m, int64_t n, int threads) {
  int best = 1;
  for (int rows = 1; rows <= threads; ++rows) {
    const auto edge = [&](int r) { return (m + r - 1) / r + n * r / threads; };
    if (threads % rows == 0 && edge(rows) < edge(best)) best = rows;
  }
  return best;
}

// Rows and columns of c that one thread computes.
void multiply_part(const GemmArgs& args, const GemmShape& s, Range rows, Range columns) {
  if (rows.size() == 0 || columns.size() == 0) return;
  float* c = args.c.as<float>() + rows.begin * s.n + columns.begin;
  const float* bias = args.bias.absent() ? nullptr : args.bias.as<float>() + columns.begin;
  const bool prefill = bias != nullptr || (s.k == 0 && !args.accumulate);
  if (prefill)
    for (int64_t i = 0; i < rows.size(); ++i) {
      if (bias != nullptr) std::copy_n(bias, columns.size(), c + i * s.n);
      if (bias == nullptr) std::fill_n(c + i * s.n, columns.size(), 0.0f);
    }
  if (s.k == 0) return;
  const float* a = args.a.as<float>() + (args.transpose_a ? rows.begin : rows.begin * s.k);
  const float* b = args.b.as<float>() + (args.transpose_b ? columns.begin * s.k : columns.begin);
  const auto transposed = [](bool yes) { return yes ? kBlasTransposed : kBlasPlain; };
  blas().sgemm(kBlasRowMajor, transposed(args.transpose_a), transposed(args.transpose_b),
               static_cast<int>(rows.size()), static_cast<int>(columns.size()),
               static_cast<int>(s.k), 1.0f, a, static_cast<int>(args.a.cols()), b,
               static_cast<int>(args.b.cols()), args.accumulate || prefill ? 1.0f : 0.0f, c,
               static_cast<int>(s.n));
}

}  // namespace

void CpuOps::gemm(const GemmArgs& args) {
  const GemmShape s = shape_of(args);
  MAXIM_CHECK(std::max({s.m, s.n, s.k}) <= std::numeric_limits<int>::max(),
              "[{}, {}] x [{}, {}] is beyond BLAS's 32-bit sizes", s.m, s.k, s.k, s.n);
  const double flops = 2.0 * s.m * s.n * s.k;
  const int threads = flops < kLeastParallelFlops ? 1 : omp_get_max_threads();
  const int parts_of_rows = row_parts(s.m, s.n, threads);
  const int parts_of_columns = threads / parts_of_rows;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; ++part)
    multiply_part(args, s, part_of(s.m, part / parts_of_columns, parts_of_rows),
                  part_of(s.n, part % parts_of_columns, parts_of_columns));
  if (!args.a_sums.absent()) add_column_sums(args.a_sums, args.a);
}

std::string CpuOps::gemm_library() const { return blas().name; }

}  // namespace maxim

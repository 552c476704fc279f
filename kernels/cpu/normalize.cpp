// Rows scaled to length 1, y = x / max(|x|, 1e-12) as torch.nn.functional.normalize, and the way
// back: the part of d_y along y is taken out. Reads and writes each row once.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vector_math.h"

namespace maxim {
namespace {

constexpr float kLeastNorm = 1e-12f;

float dot(const float* a, const float* b, int64_t size) {
  Floats sum = {};
  for_each_vector(size, [&](int64_t j, auto v) { sum += v.load(a + j) * v.load(b + j); });
  return sum_of_lanes(sum);
}

}  // namespace

void CpuOps::normalize_forward(const Tensor& y, const Tensor& norm, const Tensor& x) {
  const int64_t rows = x.rows(), d = x.cols();
  MAXIM_CHECK(y.rows() == rows && y.cols() == d && norm.size() == rows,
              "y [{}, {}], norm {} for x [{}, {}]", y.rows(), y.cols(), norm.size(), rows, d);
  float *out = y.as<float>(), *norms = norm.as<float>();
  const float* in = x.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < rows; ++t) {
    const float* row = in + t * d;
    norms[t] = std::max(std::sqrt(dot(row, row, d)), kLeastNorm);
    const float scale = 1.0f / norms[t];
    for_each_vector(d,
                    [&](int64_t j, auto v) { v.store(out + t * d + j, v.load(row + j) * scale); });
  }
}

void CpuOps::normalize_backward(const Tensor& d_x, const Tensor& d_y, const Tensor& y,
                                const Tensor& norm) {
  const int64_t rows = y.rows(), d = y.cols();
  MAXIM_CHECK(d_x.rows() == rows && d_x.cols() == d && d_y.rows() == rows && d_y.cols() == d &&
                  norm.size() == rows,
              "d_x [{}, {}], d_y [{}, {}], norm {} for y [{}, {}]", d_x.rows(), d_x.cols(),
              d_y.rows(), d_y.cols(), norm.size(), rows, d);
  float* d_in = d_x.as<float>();
  const float *d_out = d_y.as<float>(), *out = y.as<float>(), *norms = norm.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < rows; ++t) {
    const float *g = d_out + t * d, *u = out + t * d;
    // Below the least norm, y is a constant multiple of x and has no direction to take out.
    const float along = norms[t] > kLeastNorm ? dot(u, g, d) : 0.0f;
    const float scale = 1.0f / norms[t];
    for_each_vector(d, [&](int64_t j, auto v) {
      v.store(d_in + t * d + j, (v.load(g + j) - v.load(u + j) * along) * scale);
    });
  }
}

}  // namespace maxim

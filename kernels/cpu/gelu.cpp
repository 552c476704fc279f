// GELU (Hendrycks and Gimpel 2016) in its exact form, as BERT's: gelu(x) = x Phi(x), Phi the normal
// distribution (vector_math.h); gelu'(x) = Phi(x) + x phi(x).
//
// Forward: 8 T I bytes, about 35 instructions a vector. Backward: the output is computed again, so
// only h needs to be saved: 16 T I bytes (8 read, 8 written), one exponential for Phi and phi. Rows
// are cut into blocks; d_bias is their sum in block order, whatever the threads.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/row_blocks.h"
#include "kernels/cpu/vector_math.h"

namespace maxim {

void CpuOps::gelu_forward(const Tensor& y, const Tensor& h) {
  MAXIM_CHECK(y.size() == h.size(), "y has {} elements, h {}", y.size(), h.size());
  const int64_t rows = h.rows(), columns = h.cols();
  float* out = y.as<float>();
  const float* in = h.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < rows; ++t)
    for_each_vector(columns, [&](int64_t j, auto v) {
      const Floats x = v.load(in + t * columns + j);
      v.store(out + t * columns + j, x * normal(x).cdf);
    });
}

void CpuOps::gelu_backward(const Tensor& y, const Tensor& d_h, const Tensor& d_bias,
                           const Tensor& d_y, const Tensor& h) {
  const int64_t rows = h.rows(), columns = h.cols();
  MAXIM_CHECK(y.size() == h.size() && d_h.size() == h.size() && d_y.size() == h.size() &&
                  d_bias.size() == columns,
              "y {}, d_h {}, d_y {}, d_bias {} elements for h [{}, {}]", y.size(), d_h.size(),
              d_y.size(), d_bias.size(), rows, columns);
  const RowBlocks blocks(rows);
  float* partial = partial_sums_.floats(RowBlocks::kMostBlocks * columns, "sums of GELU gradients");
  float *out = y.as<float>(), *d_in = d_h.as<float>();
  const float *d_out = d_y.as<float>(), *in = h.as<float>();
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks.count(); ++b) {
    float* sums = partial + b * columns;
    std::fill_n(sums, columns, 0.0f);
    for (int64_t t = blocks.begin(b); t < blocks.end(b); ++t) {
      const int64_t row = t * columns;
      for_each_vector(columns, [&](int64_t j, auto v) {
        const Floats x = v.load(in + row + j);
        const Normal n = normal(x);
        const Floats d = v.load(d_out + row + j) * (x * n.density + n.cdf);
        v.store(out + row + j, x * n.cdf);
        v.store(d_in + row + j, d);
        v.store(sums + j, v.load(sums + j) + d);
      });
    }
  }
  add_blocks(d_bias.as<float>(), partial, columns, blocks.count(), columns);
}

}  // namespace maxim

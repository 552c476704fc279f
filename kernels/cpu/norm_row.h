// One row of LayerNorm (Ba, Kiros and Hinton 2016), for layer_norm.cpp and embedding.cpp; and the
// dropout of a row of hidden units. Rows are a few kilobytes, so the second and third pass over one
// read the first-level cache.
//
//   x̂ = (s - mean) rstd      y = gamma x̂ + beta
//   g = d_y gamma             d_s = rstd (g - mean(g) - x̂ mean(g x̂))
//   d_gamma += d_y x̂         d_beta += d_y
#pragma once

#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops.h"

namespace maxim {

struct Moments {
  float mean, rstd;
};

// Mean and 1 / sqrt(variance + epsilon) of a row whose lanes add up to `sum`. The variance is a
// second pass, sum of (s - mean)^2 / h: the difference of two squares would lose all digits of a
// row whose mean is far from 0.
inline Moments moments_of(const float* s, Floats sum, int64_t h, float epsilon) {
  const float mean = sum_of_lanes(sum) / h;
  Floats squares = {};
  for_each_vector(h, [&](int64_t j, auto v) {
    const Floats difference = v.keep(v.load(s + j) - mean);
    squares += difference * difference;
  });
  return {mean, 1.0f / std::sqrt(sum_of_lanes(squares) / h + epsilon)};
}

inline Floats normalized(Floats s, Moments m) { return (s - m.mean) * m.rstd; }

inline void norm_row(float* y, const float* s, Moments m, const float* gamma, const float* beta,
                     int64_t h) {
  for_each_vector(h, [&](int64_t j, auto v) {
    v.store(y + j, normalized(v.load(s + j), m) * v.load(gamma + j) + v.load(beta + j));
  });
}

// d_s may be d_y.
inline void norm_row_backward(float* d_s, float* d_gamma, float* d_beta, const float* d_y,
                              const float* s, Moments m, const float* gamma, int64_t h) {
  Floats sum = {}, product = {};
  for_each_vector(h, [&](int64_t j, auto v) {
    const Floats g = v.load(d_y + j) * v.load(gamma + j);
    sum += g;
    product += g * normalized(v.load(s + j), m);
  });
  const float mean_g = sum_of_lanes(sum) / h, mean_product = sum_of_lanes(product) / h;
  for_each_vector(h, [&](int64_t j, auto v) {
    const Floats d = v.load(d_y + j), x = normalized(v.load(s + j), m);
    v.store(d_gamma + j, v.load(d_gamma + j) + d * x);
    v.store(d_beta + j, v.load(d_beta + j) + d);
    v.store(d_s + j, (d * v.load(gamma + j) - mean_g - x * mean_product) * m.rstd);
  });
}

// Dropout of rows [T, H] of hidden units.
class RowDropout {
 public:
  static constexpr int64_t kMostColumns = 4096;  // the largest BERT has 1024
  using Bits = uint16_t[kMostColumns];

  RowDropout(const Dropout& dropout, const Sequences& sequences, int64_t columns)
      : mask(dropout.probability), dropout_(dropout), columns_(columns) {
    if (!active()) return;
    MAXIM_CHECK(columns <= kMostColumns, "dropout of {} columns", columns);
    MAXIM_CHECK(dropout.probability < 1 && dropout.site < 65536, "probability {}, site {}",
                dropout.probability, dropout.site);
    sequence_of_ = sequences.sequence_of.as<int32_t>();
    positions_ = sequences.positions.as<int32_t>();
    rows_ = sequences.random_rows.as<uint32_t>();
    text_columns_ = sequences.random_columns.as<uint32_t>();
  }
  bool active() const { return dropout_.active(); }
  // The bits of row t, for mask.apply.
  void draw(Bits& bits, int64_t t) const {
    const int32_t s = sequence_of_[t];
    draw_dropout_bits(bits, columns_, dropout_, rows_[s], text_columns_[s], positions_[t]);
  }

  const DropoutMask mask;

 private:
  const Dropout dropout_;
  const int64_t columns_;
  const int32_t* sequence_of_ = nullptr;
  const int32_t* positions_ = nullptr;
  const uint32_t* rows_ = nullptr;
  const uint32_t* text_columns_ = nullptr;
};

}  // namespace maxim

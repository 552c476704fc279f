// One row of LayerNorm (Ba, Kiros and Hinton 2016) in registers, for layer_norm.cu and
// embedding.cu; and the dropout of a row of hidden units.
//
//   x̂ = (s - mean) rstd      y = gamma x̂ + beta
//   g = d_y gamma             d_s = rstd (g - mean(g) - x̂ mean(g x̂))
//   d_gamma += d_y x̂         d_beta += d_y
#pragma once

#include "kernels/cuda/column_sums.cuh"
#include "kernels/dropout.h"

namespace maxim {

struct Moments {
  float mean, rstd;
};

// Mean and 1 / sqrt(variance + epsilon) of a row whose values in this lane add up to `sum`. The
// variance is a second pass over the registers: the difference of two squares would lose all digits
// of a row whose mean is far from 0. `scratch`: kRowScratchBytes.
template <int N>
__device__ __forceinline__ Moments moments_of(const RowLanes<N>& row,
                                              const float (&s)[kLaneColumns<N>], float sum,
                                              float epsilon, float* scratch) {
  const auto h = static_cast<float>(row.columns);
  const float mean = row.sum(sum, scratch) / h;
  float squares = 0;
  row.for_each_pack([&](int i, int) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float difference = s[i * N + e] - mean;
      squares = fmaf(difference, difference, squares);
    }
  });
  return {mean, 1.0f / sqrtf(row.sum(squares, scratch + kWarp) / h + epsilon)};
}

__device__ __forceinline__ float normalized(float s, const Moments& m) {
  return (s - m.mean) * m.rstd;
}

// y = gamma x̂ + beta for N columns: the forward pass and every later apply give the same bits.
template <int N>
__device__ __forceinline__ void norm_pack(float* y, const float* s, const Moments& m,
                                          const float* gamma, const float* beta) {
  float g[N], b[N];
  load_pack<N>(g, gamma);
  load_pack<N>(b, beta);
#pragma unroll
  for (int e = 0; e < N; ++e) y[e] = fmaf(normalized(s[e], m), g[e], b[e]);
}

// What dropout does to a lane's values: bit i * N + e is set where values[i * N + e] is kept.
struct DropoutMask {
  uint32_t kept = ~0u;
  float scale = 1;

  __device__ __forceinline__ float apply(float value, int bit) const {
    return kept >> bit & 1 ? value * scale : 0.0f;  // not value * 0: a dropped infinity is gone
  }
};

// Dropout of rows [T, H] of hidden units; an argument of kernels.
class HiddenDropout {
 public:
  HiddenDropout(const Dropout& dropout, const Sequences& sequences) : active_(dropout.active()) {
    if (!active_) return;
    MAXIM_CHECK(dropout.probability < 1 && dropout.site < 65536, "probability {}, site {}",
                dropout.probability, dropout.site);
    sequence_of_ = sequences.sequence_of.as<int32_t>();
    positions_ = sequences.positions.as<int32_t>();
    rows_ = sequences.random_rows.as<uint32_t>();
    text_columns_ = sequences.random_columns.as<uint32_t>();
    seed_ = dropout.seed;
    step_ = dropout.step;
    site_ = dropout.site;
    threshold_ = dropout_threshold(dropout.probability);
    scale_ = dropout_scale(dropout.probability);
  }

  // The mask of row t, one register, so that the draws' own registers are free again before the row
  // is worked on. One draw decides 8 columns; lanes with fewer in a pack draw the same one again.
  template <int N>
  __device__ __forceinline__ DropoutMask mask(const RowLanes<N>& lanes, int64_t t) const {
    static_assert(N == 1 || N == 4 || N == kDropoutGroup);
    if (!active_) return {};
    const int32_t sequence = sequence_of_[t];
    const uint32_t row = rows_[sequence], text_column = text_columns_[sequence];
    const auto position = static_cast<uint32_t>(positions_[t]);
    DropoutMask mask{0, scale_};
    lanes.for_each_pack([&](int i, int column) {
      const Philox4 bits =
          dropout_bits(seed_, step_, site_, row, text_column, position, column / kDropoutGroup);
      const int first = column % kDropoutGroup;
#pragma unroll
      for (int e = 0; e < N; ++e) {
        // Words by selection: an index that is not constant would put `bits` into memory.
        const int word = (first + e) / 2;
        const uint32_t low = word & 1 ? bits.x[1] : bits.x[0];
        const uint32_t high = word & 1 ? bits.x[3] : bits.x[2];
        // The element's 16 bits on top; what is below them does not change the comparison.
        const uint32_t random = (word & 2 ? high : low) << ((first + e) & 1 ? 0 : 16);
        mask.kept |= static_cast<uint32_t>(random >= threshold_ << 16) << (i * N + e);
      }
    });
    return mask;
  }

 private:
  const int32_t* sequence_of_ = nullptr;
  const int32_t* positions_ = nullptr;
  const uint32_t* rows_ = nullptr;
  const uint32_t* text_columns_ = nullptr;
  uint64_t seed_ = 0;
  uint32_t step_ = 0, site_ = 0, threshold_ = 0;
  float scale_ = 1;
  bool active_ = false;
};

// What a kernel of norm_backward_plan() needs to add its three sums to `out`.
struct NormSums {
  float* out[3];      // [columns] each; null: not wanted
  float* partial;     // [norm_partial_rows(), 3, columns]: of the blocks, then of groups of blocks
  unsigned* tickets;  // of the groups' number, then of each group
};

// f(c, sums) for packs of M of `width` columns: sums over `count` rows, in their order.
template <int M, class F>
__device__ __forceinline__ void for_each_row_sum(const float* rows, unsigned count, int width,
                                                 F&& f) {
  for (int c = static_cast<int>(threadIdx.x) * M; c < width; c += kRowThreads * M) {
    float sum[M] = {};
#pragma unroll 8
    for (unsigned b = 0; b < count; ++b) {
      const auto pack = Pack<float, M>::load(rows + int64_t{b} * width + c);
#pragma unroll
      for (int e = 0; e < M; ++e) sum[e] += pack[e];
    }
    f(c, sum);
  }
}

// out[k][j] += the blocks' sums, in an order that depends on the shape alone: the last block of
// kNormGroup neighbours adds theirs, the last of all the groups'. One block alone would wait for
// megabytes. M columns at a time, which divides `columns`.
template <int M>
__device__ __forceinline__ void add_norm_sums(const NormSums& o, int columns) {
  const int width = 3 * columns;
  const unsigned group = blockIdx.x / kNormGroup, first = group * kNormGroup;
  const unsigned groups = (gridDim.x + kNormGroup - 1) / kNormGroup;
  const unsigned members = gridDim.x - first < kNormGroup ? gridDim.x - first : kNormGroup;
  if (!is_last_block(o.tickets + 1 + group, members)) return;
  float* of_groups = o.partial + int64_t{gridDim.x} * width;
  for_each_row_sum<M>(o.partial + int64_t{first} * width, members, width,
                      [&](int c, const float* sum) {
#pragma unroll
                        for (int e = 0; e < M; ++e)
                          of_groups[int64_t{group} * width + c + e] = sum[e];
                      });
  if (!is_last_block(o.tickets, groups)) return;
  for_each_row_sum<M>(of_groups, groups, width, [&](int c, const float* sum) {
    const int kind = c / columns;
    float* out = kind == 0 ? o.out[0] : kind == 1 ? o.out[1] : o.out[2];
    if (out == nullptr) return;
#pragma unroll
    for (int e = 0; e < M; ++e) out[c - kind * columns + e] += sum[e];
  });
}

inline NormSums norm_sums(CudaOps& ops, const Tensor& first, const Tensor& second,
                          const Tensor& third) {
  const auto out = [](const Tensor& t) { return t.absent() ? nullptr : t.as<float>(); };
  const int64_t most = (kMostNormBlocks + kMostNormGroups) * 3 * first.size();
  return {{out(first), out(second), out(third)},
          ops.scratch().floats(most, "sums of LayerNorm gradients"),
          ops.tickets(1 + kMostNormGroups)};
}

// Three sums a column over the rows of a block. Each thread adds to its own cells of shared memory
// (96 registers would leave one block a multiprocessor); at the end the block's groups are added in
// order. Cells of neighbouring threads are neighbours, 16 bytes each where packs fill them: no bank
// is asked twice.
template <int N>
class ThreadSums {
 public:
  static constexpr int kKinds = 3;

  // `cells`: shared memory of norm_backward_plan's size, behind kRowScratchBytes.
  __device__ __forceinline__ ThreadSums(const RowLanes<N>& row, float* cells)
      : row_(row), packs_(packs_of(row.columns)), cells_(cells) {
    for (int i = 0; i < kKinds * packs_ * N; ++i) cells[i * kRowThreads + threadIdx.x] = 0;
    __syncthreads();
  }

  // Adds to the sums of `kind` for this lane's pack i.
  __device__ __forceinline__ void add(int kind, int i, const float* values) const {
#pragma unroll
    for (int part = 0; part < N / kCell; ++part) {
      float* cell = cells_ + place(kind, i, part, threadIdx.x);
      auto sum = Pack<float, kCell>::load(cell);
#pragma unroll
      for (int e = 0; e < kCell; ++e) sum.x[e] += values[part * kCell + e];
      sum.store(cell);
    }
  }

  // Adds the sums of all blocks to what `o` names. The last call of the kernel, by all threads.
  __device__ __forceinline__ void add_to(const NormSums& o) const {
    store(o.partial + blockIdx.x * int64_t{kKinds} * row_.columns);
    if (row_.columns % 4 == 0)
      add_norm_sums<4>(o, row_.columns);
    else
      add_norm_sums<1>(o, row_.columns);
  }

 private:
  // Writes the block's sums as [kKinds, columns].
  __device__ __forceinline__ void store(float* out) const {
    __syncthreads();
    for (int c = threadIdx.x; c < kKinds * row_.columns; c += kRowThreads) {
      const int kind = c / row_.columns, column = c % row_.columns;
      const int warp = column / kWarpColumns<N>, e = column % N;
      const int pack = column % kWarpColumns<N> / N;
      float sum = 0;
      for (int group = 0; group < row_.groups; ++group)
        sum += cells_[place(kind, pack / kWarp, e / kCell, (warp + group) * kWarp + pack % kWarp) +
                      e % kCell];
      out[c] = sum;
    }
  }

  static constexpr int kCell = N < 4 ? N : 4;

  static __device__ __forceinline__ int packs_of(int columns) {
    const int most = kWarpColumns<N>;
    return ((columns < most ? columns : most) + kWarp * N - 1) / (kWarp * N);
  }

  __device__ __forceinline__ int place(int kind, int i, int part, int thread) const {
    return (((kind * packs_ + i) * (N / kCell) + part) * kRowThreads + thread) * kCell;
  }

  const RowLanes<N>& row_;
  const int packs_;
  float* const cells_;
};

// Blocks a multiprocessor of the backward kernels: two need at most 128 registers a thread, which
// 32 values of f32 do not fit in (x̂, g and the loads on their way).
template <class T, int N>
constexpr int kGradientBlocks = sizeof(T) == 2 && N > 1 ? 2 : 1;

// The gradient of a row: d_s, a lane's values. Reads d_y and s once and adds to the sums of d_gamma
// (kind 0) and d_beta (kind 1). `mask`: of a dropout behind the LayerNorm. `scratch`:
// kRowScratchBytes. `y` [columns], if not null, becomes the row's output again, with `beta`.
template <class T, int N>
__device__ __forceinline__ void norm_row_backward(float (&d_s)[kLaneColumns<N>],
                                                  const ThreadSums<N>& sums, const RowLanes<N>& row,
                                                  const T* d_y, const T* s, const float* gamma,
                                                  const Moments& m, const DropoutMask& mask,
                                                  float* scratch, T* y = nullptr,
                                                  const float* beta = nullptr) {
  float x[kLaneColumns<N>], sum = 0, product = 0;
  row.for_each_pack([&](int i, int column) {
    load_pack<N>(d_s + i * N, d_y + column);
    load_pack<N>(x + i * N, s + column);
  });
  row.for_each_pack([&](int i, int column) {
    float w[N], d[N], d_gamma[N];
    load_pack<N>(w, gamma + column);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const int at = i * N + e;
      d[e] = mask.apply(d_s[at], at);
      x[at] = normalized(x[at], m);
      d_gamma[e] = d[e] * x[at];
      d_s[at] = d[e] * w[e];
      sum += d_s[at];
      product = fmaf(d_s[at], x[at], product);
    }
    if (y != nullptr) {
      float b[N], out[N];
      load_pack<N>(b, beta + column);
#pragma unroll
      for (int e = 0; e < N; ++e) out[e] = fmaf(x[i * N + e], w[e], b[e]);
      store_pack<N>(y + column, out);
    }
    sums.add(0, i, d_gamma);
    sums.add(1, i, d);
  });
  const auto h = static_cast<float>(row.columns);
  const float mean = row.sum(sum, scratch) / h;
  const float mean_product = row.sum(product, scratch + kWarp) / h;
  row.for_each_pack([&](int i, int) {
#pragma unroll
    for (int e = 0; e < N; ++e)
      d_s[i * N + e] = (d_s[i * N + e] - mean - x[i * N + e] * mean_product) * m.rstd;
  });
}

}  // namespace maxim

// What the f32 versions of attention's two passes share: tiles of rows in shared memory, products
// of them with plain FMA, and which probabilities dropout keeps. A warp owns 8 rows and meets the
// other side 32 rows, one a lane, at a time.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/reduce.cuh"

namespace maxim {

constexpr int kOwned = kAttentionOwned;
constexpr int kLanes = kAttentionLanes;
constexpr int kGroups = kLanes / kDropoutGroup;
constexpr int kThreads = kAttentionWarps * kWarp;  // of the kernels over tiles
template <int Width>
constexpr int kRow = attention_row(Width);
using Float4 = Pack<float, 4>;

// x[0 .. rows) of rows that are `stride` floats apart into a tile of `capacity` rows, zeros behind.
template <int Width>
__device__ __forceinline__ void load_rows(float* tile, int capacity, const float* x, int64_t stride,
                                          int rows) {
  constexpr int kPacks = Width / 4;
#pragma unroll 2  // more would want more than 128 registers
  for (int i = threadIdx.x; i < capacity * kPacks; i += kThreads) {
    const int row = i / kPacks, column = i % kPacks * 4;
    Float4 values{};
    if (row < rows) values = Float4::load(x + row * stride + column);
    values.store(tile + row * kRow<Width> + column);
  }
}

// s[i] = row i of the warp's own . the lane's row.
template <int Width>
__device__ __forceinline__ void dots(float (&s)[kOwned], const float* own, const float* lane_row) {
#pragma unroll
  for (int i = 0; i < kOwned; ++i) s[i] = 0;
#pragma unroll 1
  for (int c = 0; c < Width; c += 4) {
    const Float4 y = Float4::load(lane_row + c);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const Float4 x = Float4::load(own + i * kRow<Width> + c);
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i] = fmaf(x[j], y[j], s[i]);
    }
  }
}

// acc += w x: w [8 own][32 lanes], x [32 lanes][d] with rows of `Row` floats. A lane holds columns
// lane, lane + 32.
template <int Width, int Row = kRow<Width>>
__device__ __forceinline__ void add_product(float (&acc)[kOwned][Width / kWarp], const float* w,
                                            const float* x) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int j = 0; j < kLanes; j += 4) {
    float columns[4][Width / kWarp];
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int c = 0; c < Width / kWarp; ++c) columns[k][c] = x[(j + k) * Row + c * kWarp + lane];
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const Float4 weights = Float4::load(w + i * kLanes + j);
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int c = 0; c < Width / kWarp; ++c)
          acc[i][c] = fmaf(weights[k], columns[k][c], acc[i][c]);
    }
  }
}

// Rows [0, rows) of what a warp has summed up, times `factor`.
template <int Width>
__device__ __forceinline__ void store_rows(float* y, int64_t stride, int rows,
                                           const float (&acc)[kOwned][Width / kWarp],
                                           float factor) {
  for (int i = 0; i < kOwned; ++i)
    for (int c = 0; c < Width / kWarp; ++c)
      if (i < rows) y[i * stride + c * kWarp + threadIdx.x % kWarp] = acc[i][c] * factor;
}

// Bit i: dropout keeps element i of the eight that `bits` decide.
__device__ __forceinline__ uint32_t kept_elements(const Philox4& bits, uint32_t threshold) {
  uint32_t kept = 0;
#pragma unroll
  for (int i = 0; i < kDropoutGroup; ++i)
    kept |= static_cast<uint32_t>(dropout_bits_of(bits, i) >= threshold) << i;
  return kept;
}

// Of 8 query rows and 32 keys, one a lane: each lane draws for one row and eight keys, and a row's
// four lanes tell the others.
class KeptKeys {
 public:
  __device__ __forceinline__ KeptKeys(const AttentionDropout& dropout, const AttentionTile& tile,
                                      int position, int first_key)
      : all_(dropout.threshold == 0) {
    const int lane = threadIdx.x % kWarp;
    if (!all_)
      drawn_ =
          kept_elements(tile.bits(dropout, position, first_key / kDropoutGroup + lane % kGroups),
                        dropout.threshold);
  }
  // Row whose bits this lane draws.
  static __device__ __forceinline__ int drawn_row() { return threadIdx.x % kWarp / kGroups; }
  // Whether row i keeps the lane's key. All lanes ask.
  __device__ __forceinline__ bool operator[](int i) const {
    if (all_) return true;
    const int lane = threadIdx.x % kWarp;
    const uint32_t row = __shfl_sync(kAllLanes, drawn_, i * kGroups + lane / kDropoutGroup);
    return row >> lane % kDropoutGroup & 1;
  }

 private:
  bool all_;
  uint32_t drawn_ = 0;
};

// Calls f with the head's width as a constant.
template <class F>
void for_width(int64_t width, F&& f) {
  if (width == 32)
    f(std::integral_constant<int, 32>{});
  else
    f(std::integral_constant<int, 64>{});
}

}  // namespace maxim

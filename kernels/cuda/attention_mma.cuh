// What the tensor-core versions of attention's two passes share: the rows of a block and of a warp,
// and which probabilities a lane keeps.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace maxim {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;
constexpr int kKeyTile = kAttentionKeyTile;

// log2(e) / sqrt(d): scores become exponents of 2.
template <int Width>
constexpr float kExponentScale = Width == 32 ? kLog2E * 0.17677669529663687f : kLog2E * 0.125f;

// The pieces of a head that a block reads.
template <class T, int Width>
struct HeadRows {
  const T *q, *k, *v;
  int64_t hidden, stride;  // of rows of [T, H] and of [T, 3H]

  __device__ __forceinline__ HeadRows(const T* qkv, const AttentionTile& tile, int heads)
      : hidden(int64_t{heads} * Width), stride(3 * hidden) {
    q = qkv + tile.start * stride + tile.head * Width;
    k = q + hidden;
    v = k + hidden;
  }
};

// K and V of a head, kKeyTile keys at a time: two stages, so that one is read while the next comes.
template <class T, int Width>
struct KeyStages {
  T* data;
  const HeadRows<T, Width>& x;
  int keys;

  __device__ __forceinline__ SharedTile<T, Width> k(int i) const {
    return {data + i % 2 * 2 * kKeyTile * Width};
  }
  __device__ __forceinline__ SharedTile<T, Width> v(int i) const {
    return {k(i).data + kKeyTile * Width};
  }
  // Starts to copy tile i.
  __device__ __forceinline__ void copy(int i) const {
    const int key = i * kKeyTile;
    copy_keys(k(i), kKeyTile, x.k + key * x.stride, x.stride, keys - key);
    copy_keys(v(i), kKeyTile, x.v + key * x.stride, x.stride, keys - key);
    cp_async_commit();
  }
};

// Which of 32 keys the lane's two rows keep. A lane's 16 elements are two groups of dropout.
class KeptKeys {
 public:
  __device__ __forceinline__ KeptKeys(const AttentionDropout& dropout, const AttentionTile& tile,
                                      const int (&positions)[2], int first_key)
      : threshold_(dropout.threshold << 16) {
    const int group = first_key / kDropoutGroup + threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      bits_[half] = dropout.threshold == 0 ? Philox4{} : tile.bits(dropout, positions[half], group);
  }
  // Element e of result t. Comparing in the upper half of the word saves a mask: the lower half
  // cannot change >=.
  __device__ __forceinline__ bool operator()(int t, int e) const {
    const uint32_t word = bits_[e / 2].x[t];
    return (e % 2 == 0 ? word << 16 : word) >= threshold_;
  }

 private:
  Philox4 bits_[2];
  uint32_t threshold_;
};

// Key of element e of result t in a chunk, from its first key.
__device__ __forceinline__ int key_of(int t, int e) {
  return threadIdx.x % 4 * kDropoutGroup + 2 * t + e % 2;
}

// The warp's rows of a tile of the block: 16 from `row`, the first at row `first` of the sequence,
// `own` of them real. A lane's two rows, clamped to real ones.
struct WarpRows {
  int row, first, own;
  int lane_rows[2];

  __device__ __forceinline__ WarpRows(const AttentionTile& tile, int tile_first)
      : row(threadIdx.x / kWarp * 16), first(tile_first + row), own(tile.rows - first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) lane_rows[half] = min(first + offset(half), tile.rows - 1);
  }
  __device__ __forceinline__ bool real(int half) const { return offset(half) < own; }
  static __device__ __forceinline__ int offset(int half) {
    return static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
  }
};

// Calls f with the 16-bit element type and the head's width as constants.
template <class F>
void for_type_and_width(const AttentionShape& shape, F&& f) {
  const auto with = [&](auto element) {
    if (shape.width == 32)
      f(element, std::integral_constant<int, 32>{});
    else
      f(element, std::integral_constant<int, 64>{});
  };
  if (shape.type == DType::bf16)
    with(__nv_bfloat16{});
  else
    with(__half{});
}

}  // namespace maxim

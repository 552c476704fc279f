// The forward pass of attention of 16-bit activations on tensor cores (mma.sync m16n8k16, sm_80 and
// later); formulas in kernels/cuda/attention.cu. A warp owns 16 query rows of a head and goes
// through the keys 32 at a time; their probabilities pass from one product to the next in
// registers. One exp2 a score.
//
//   longest <= 256   a block has up to 64 rows and all K and V of its head in shared memory; all
//                    scores of a row are in registers, so the maximum is exact
//   longer           128 rows; tiles of 64 keys, two in flight; online softmax
//
// Products are summed in f32; probabilities are rounded to the activations' type as an operand.
// Sums run over ascending chunks of keys. 4 r n d FLOPs a head of r rows and n keys.
#include "kernels/cuda/attention_mma.cuh"

namespace maxim {
namespace {

// The greatest product q k and the sum of a lane's two rows so far; times `scale`, a product is an
// exponent of 2. The sum is of the lane's own keys. The maximum is subtracted from the products, so
// however large they are, the greatest is exactly 0 then.
struct SoftmaxRows {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Products of keys [0, keys) become 2^(scale (product - most)), and those behind 0. Returns in
  // `rescale` what earlier results must be multiplied by. Chunks that begin behind `keys` are left
  // alone.
  template <int Chunks>
  __device__ __forceinline__ void add(float (&s)[Chunks][4][4], float (&rescale)[2], int keys,
                                      float scale) {
    float greatest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if (kChunk * c >= keys) break;
      if (kChunk * (c + 1) > keys) {
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (kChunk * c + key_of(t, e) >= keys) s[c][t][e] = -INFINITY;
      }
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) greatest[e / 2] = fmaxf(greatest[e / 2], s[c][t][e]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float now = fmaxf(most[half], quad_max(greatest[half]));
      rescale[half] = exp2_approximate((most[half] - now) * scale);
      most[half] = now;
      sum[half] *= rescale[half];
    }
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if (kChunk * c >= keys) break;
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[c][t][e] = exp2_approximate((s[c][t][e] - most[e / 2]) * scale);
          sum[e / 2] += s[c][t][e];
        }
    }
  }
};

// acc += (m p) v of chunks that begin before `keys`.
template <class T, int Width, int Chunks>
__device__ __forceinline__ void add_values(float (&acc)[Width / 8][4], float (&p)[Chunks][4][4],
                                           SharedTile<T, Width> v, const AttentionDropout& dropout,
                                           const AttentionTile& tile, const int (&positions)[2],
                                           int first_key, int keys) {
#pragma unroll
  for (int c = 0; c < Chunks; ++c) {
    if (kChunk * c >= keys) break;
    if (dropout.threshold != 0) {
      const KeptKeys kept(dropout, tile, positions, first_key + kChunk * c);
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (!kept(t, e)) p[c][t][e] = 0;
    }
    uint32_t weights[4][2];
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        weights[t][half] = pack_pair<T>(p[c][t][2 * half], p[c][t][2 * half + 1]);
    add_product<T, Width>(acc, weights, v, kChunk * c);
  }
}

// Writes a warp's rows of `out` and log_sum_exp.
template <class T, int Width>
__device__ __forceinline__ void finish_forward(T* out, float* log_sum_exp,
                                               float (&acc)[Width / 8][4], const SoftmaxRows& rows,
                                               const WarpRows& warp, const AttentionTile& tile,
                                               int heads, float dropout_scale) {
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(rows.sum[half]);
    factor[half] = dropout_scale / sum;
    if (warp.real(half) && threadIdx.x % 4 == 0)
      log_sum_exp[(tile.start + warp.lane_rows[half]) * heads + tile.head] =
          (rows.most[half] * kExponentScale<Width> + log2f(sum)) * kLn2;
  }
  const int64_t hidden = int64_t{heads} * Width;
  T* const first = out + (tile.start + warp.first) * hidden + tile.head * Width;
#pragma unroll
  for (int c = 0; c < Width; c += 32)
    store_rows<T>(acc + c / 8, factor, [&](int row) -> T* {
      return row < warp.own ? first + row * hidden + c : nullptr;
    });
}

template <int WidthOfHead, int ChunksOfKeys>
struct ShortHead {
  static constexpr int kWidth = WidthOfHead, kChunks = ChunksOfKeys;
};

template <class T, class Head>
__global__ void __launch_bounds__(kAttentionShortWarps* kWarp)
    attention_forward_short_kernel(AttentionBatch batch, AttentionDropout dropout, T* out,
                                   float* log_sum_exp, const T* qkv) {
  constexpr int Width = Head::kWidth, Chunks = Head::kChunks;
  const int tile_rows = static_cast<int>(blockDim.x) / 2;
  const AttentionTile tile(batch, tile_rows);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
  const int padded = (tile.keys + kChunk - 1) / kChunk * kChunk;
  const SharedTile<T, Width> q_tile{shared_memory<T>()}, k_tile{q_tile.data + tile_rows * Width},
      v_tile{k_tile.data + padded * Width};
  copy_rows(q_tile, tile_rows, x.q + tile.first * x.stride, x.stride, tile.size);
  copy_keys(k_tile, padded, x.k, x.stride, tile.keys);
  cp_async_commit();
  copy_keys(v_tile, padded, x.v, x.stride, tile.keys);
  cp_async_commit();

  const WarpRows warp(tile, tile.first);
  float s[Chunks][4][4];
  SoftmaxRows rows;
  cp_async_wait<1>();
  __syncthreads();
  if (warp.own > 0) {
    uint32_t q[Width / 16][4];
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) q_tile.a(q[k], warp.row, 16 * k);
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if (kChunk * c >= tile.keys) break;
      dots<T, Width>(s[c], q, k_tile, kChunk * c);
    }
    float rescale[2];
    rows.add(s, rescale, tile.keys, kExponentScale<Width>);
  }
  cp_async_wait<0>();
  __syncthreads();
  if (warp.own <= 0) return;
  float acc[Width / 8][4] = {};
  add_values<T, Width>(acc, s, v_tile, dropout, tile, warp.lane_rows, 0, tile.keys);
  finish_forward<T, Width>(out, log_sum_exp, acc, rows, warp, tile, batch.heads, dropout.scale);
}

template <class T, int Width>
__global__ void __launch_bounds__(kAttentionLongWarps* kWarp)
    attention_forward_long_kernel(AttentionBatch batch, AttentionDropout dropout, T* out,
                                  float* log_sum_exp, const T* qkv) {
  const AttentionTile tile(batch, kAttentionLongTile);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
  const SharedTile<T, Width> q_tile{shared_memory<T>()};
  const KeyStages<T, Width> stages{q_tile.data + kAttentionLongTile * Width, x, tile.keys};
  copy_rows(q_tile, kAttentionLongTile, x.q + tile.first * x.stride, x.stride, tile.size);
  stages.copy(0);

  const WarpRows warp(tile, tile.first);
  SoftmaxRows rows;
  float acc[Width / 8][4] = {};
  for (int i = 0; i * kKeyTile < tile.keys; ++i) {
    const int keys = tile.keys - i * kKeyTile;
    cp_async_wait<0>();
    __syncthreads();  // tile i is there, and tile i - 1 has been read
    if (keys > kKeyTile) stages.copy(i + 1);
    if (warp.own <= 0) continue;
    uint32_t q[Width / 16][4];
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) q_tile.a(q[k], warp.row, 16 * k);
    float s[kKeyTile / kChunk][4][4], rescale[2];
#pragma unroll
    for (int c = 0; c < kKeyTile / kChunk; ++c) dots<T, Width>(s[c], q, stages.k(i), kChunk * c);
    rows.add(s, rescale, keys, kExponentScale<Width>);
#pragma unroll
    for (int n = 0; n < Width / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] *= rescale[e / 2];
    add_values<T, Width>(acc, s, stages.v(i), dropout, tile, warp.lane_rows, i * kKeyTile, keys);
  }
  cp_async_wait<0>();  // without keys, tile 0
  if (warp.own > 0)
    finish_forward<T, Width>(out, log_sum_exp, acc, rows, warp, tile, batch.heads, dropout.scale);
}

}  // namespace

void attention_forward_mma(CudaOps& ops, const AttentionForward& args, const Sequences& sequences) {
  const AttentionShape shape = attention_shape(ops, args.qkv, args.heads, sequences);
  const KernelPlan plan = attention_forward_plan(shape);
  for_type_and_width(shape, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = width;
    const auto start = [&](auto kernel) {
      launch(ops, plan, kernel, attention_batch(sequences, args.heads, plan),
             attention_dropout(args.dropout), args.out.as<T>(), args.log_sum_exp.as<float>(),
             args.qkv.as<T>());
    };
    if (!attention_forward_is_short(shape))
      start(attention_forward_long_kernel<T, kWidth>);
    else if (shape.longest <= 2 * kChunk)
      start(attention_forward_short_kernel<T, ShortHead<kWidth, 2>>);
    else if (shape.longest <= 4 * kChunk)
      start(attention_forward_short_kernel<T, ShortHead<kWidth, 4>>);
    else if (shape.longest <= 6 * kChunk)
      start(attention_forward_short_kernel<T, ShortHead<kWidth, 6>>);
    else
      start(attention_forward_short_kernel<T, ShortHead<kWidth, kAttentionShort / kChunk>>);
  });
}

}  // namespace maxim

// The backward pass of attention of f32 activations with plain FMA, in one launch; formulas in
// kernels/cuda/attention.cu. A block is one tile of 64 rows of one head of one sequence, and its
// role is blockIdx.y:
//
//   0   d_k and d_v: a warp owns 8 keys, and the query rows come 32 at a time, one a lane
//   1   d_q: a warp owns 8 query rows, and the keys come 32 at a time, one a lane
//
// So no result is shared and sums run over ascending rows; both roles compute the scores, 7
// products of 2 r n d FLOPs a head of r rows and n keys instead of 5. Both compute delta too, from
// `out`: a 1/(4 d) of the work, and no memory between blocks.
#include "kernels/cuda/attention_f32.cuh"
#include "kernels/cuda/ptx.cuh"

namespace maxim {
namespace {

struct Operands {
  float* d_qkv;
  const float *d_out, *out, *log_sum_exp, *qkv;
};

// log_sum_exp and delta of rows [row, row + capacity) of a head into `saved`; what is behind the
// last row is that row's. 8 lanes read 128 bytes of a row.
template <int Width>
__device__ __forceinline__ void load_saved(float2* saved, int capacity, const AttentionTile& tile,
                                           const Operands& x, int heads, int row) {
#pragma unroll 1
  for (int i = threadIdx.x / 8; i < capacity; i += kThreads / 8) {
    const int64_t element = (tile.start + min(row + i, tile.rows - 1)) * heads + tile.head;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < Width; c += 32) {
      const int64_t at = element * Width + c + threadIdx.x % 8 * 4;
      const Float4 d_out = Float4::load(x.d_out + at), out = Float4::load(x.out + at);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = fmaf(d_out[j], out[j], sum);
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    if (threadIdx.x % 8 == 0) saved[i] = {x.log_sum_exp[element], sum};
  }
}

template <int Width>
__device__ __forceinline__ void key_gradients(const AttentionTile& tile,
                                              const AttentionBatch& batch,
                                              const AttentionDropout& dropout, const Operands& x) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t hidden = int64_t{batch.heads} * Width, stride = 3 * hidden;
  const float* const q = x.qkv + tile.start * stride + tile.head * Width;
  const float* const d_out = x.d_out + tile.start * hidden + tile.head * Width;
  float* const k_tile = shared_memory<float>();
  float* const v_tile = k_tile + kAttentionTile * kRow<Width>;
  float* const q_tile = v_tile + kAttentionTile * kRow<Width>;
  float* const d_out_tile = q_tile + kLanes * kRow<Width>;
  float2* const saved = reinterpret_cast<float2*>(d_out_tile + kLanes * kRow<Width>);
  float* const p_tile = reinterpret_cast<float*>(saved + kLanes) + warp * kOwned * kLanes;
  const float* const k_own = k_tile + warp * kOwned * kRow<Width>;
  const float* const v_own = v_tile + warp * kOwned * kRow<Width>;
  const int first = tile.first + warp * kOwned, own = tile.keys - first;
  const float scale = 1 / sqrtf(static_cast<float>(Width));

  load_rows<Width>(k_tile, kAttentionTile, q + hidden + tile.first * stride, stride, tile.size);
  load_rows<Width>(v_tile, kAttentionTile, q + 2 * hidden + tile.first * stride, stride, tile.size);
  const int32_t* const positions = batch.positions + tile.start;
  float d_k[kOwned][Width / kWarp] = {}, d_v[kOwned][Width / kWarp] = {};
  // A tile beyond the keys only writes its zeros.
  for (int row = 0; row < (tile.first < tile.keys ? tile.rows : 0); row += kLanes) {
    __syncthreads();
    load_rows<Width>(q_tile, kLanes, q + row * stride, stride, tile.rows - row);
    load_rows<Width>(d_out_tile, kLanes, d_out + row * hidden, hidden, tile.rows - row);
    load_saved<Width>(saved, kLanes, tile, x, batch.heads, row);
    __syncthreads();
    if (own <= 0) continue;
    float s[kOwned], d_p[kOwned];
    dots<Width>(s, k_own, q_tile + lane * kRow<Width>);
    dots<Width>(d_p, v_own, d_out_tile + lane * kRow<Width>);
    const bool real = row + lane < tile.rows;
    const auto [log_sum, delta] = saved[lane];
    // The warp's keys are one group of dropout: a lane draws for its own row.
    const uint32_t kept = dropout.threshold == 0
                              ? ~0u
                              : kept_elements(tile.bits(dropout, positions[real ? row + lane : 0],
                                                        first / kDropoutGroup),
                                              dropout.threshold);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const float p = real && i < own ? expf(min_nan(s[i] * scale - log_sum, 0)) : 0.0f;
      const float mask = kept >> i & 1 ? dropout.scale : 0.0f;
      p_tile[i * kLanes + lane] = p * mask;
      s[i] = p * (d_p[i] * mask - delta);
    }
    __syncwarp();
    add_product<Width>(d_v, p_tile, d_out_tile);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) p_tile[i * kLanes + lane] = s[i];
    __syncwarp();
    add_product<Width>(d_k, p_tile, q_tile);
  }
  // Exactly zero behind the last key, whatever d_out holds.
#pragma unroll
  for (int i = 0; i < kOwned; ++i)
#pragma unroll
    for (int c = 0; c < Width / kWarp; ++c)
      if (i >= own) d_k[i][c] = d_v[i][c] = 0;
  float* const d_k_own = x.d_qkv + (tile.start + first) * stride + tile.head * Width + hidden;
  store_rows<Width>(d_k_own, stride, tile.rows - first, d_k, scale);
  store_rows<Width>(d_k_own + hidden, stride, tile.rows - first, d_v, 1);
}
static_assert(kOwned == kDropoutGroup, "a warp's keys are one group of dropout");

template <int Width>
__device__ __forceinline__ void query_gradients(const AttentionTile& tile,
                                                const AttentionBatch& batch,
                                                const AttentionDropout& dropout,
                                                const Operands& x) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t hidden = int64_t{batch.heads} * Width, stride = 3 * hidden;
  const float* const q = x.qkv + tile.start * stride + tile.head * Width;
  const float *const k = q + hidden, *const v = k + hidden;
  float* const q_tile = shared_memory<float>();
  float* const d_out_tile = q_tile + kAttentionTile * kRow<Width>;
  float* const k_tile = d_out_tile + kAttentionTile * kRow<Width>;
  float* const v_tile = k_tile + kLanes * kRow<Width>;
  float2* const saved = reinterpret_cast<float2*>(v_tile + kLanes * kRow<Width>);
  float* const d_s_tile = reinterpret_cast<float*>(saved + kAttentionTile) + warp * kOwned * kLanes;
  const float* const q_own = q_tile + warp * kOwned * kRow<Width>;
  const float* const d_out_own = d_out_tile + warp * kOwned * kRow<Width>;
  const int first = tile.first + warp * kOwned, own = tile.rows - first;
  const int drawn = min(first + KeptKeys::drawn_row(), tile.rows - 1);
  const int position = batch.positions[tile.start + drawn];
  const float scale = 1 / sqrtf(static_cast<float>(Width));

  load_rows<Width>(q_tile, kAttentionTile, q + tile.first * stride, stride, tile.size);
  load_rows<Width>(d_out_tile, kAttentionTile,
                   x.d_out + (tile.start + tile.first) * hidden + tile.head * Width, hidden,
                   tile.size);
  load_saved<Width>(saved, kAttentionTile, tile, x, batch.heads, tile.first);
  float acc[kOwned][Width / kWarp] = {};
  for (int key = 0; key < tile.keys; key += kLanes) {
    __syncthreads();
    load_rows<Width>(k_tile, kLanes, k + key * stride, stride, tile.keys - key);
    load_rows<Width>(v_tile, kLanes, v + key * stride, stride, tile.keys - key);
    __syncthreads();
    if (own <= 0) continue;
    float s[kOwned], d_p[kOwned];
    dots<Width>(s, q_own, k_tile + lane * kRow<Width>);
    dots<Width>(d_p, d_out_own, v_tile + lane * kRow<Width>);
    const KeptKeys kept(dropout, tile, position, key);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const auto [log_sum, delta] = saved[warp * kOwned + i];
      const float p = key + lane < tile.keys ? expf(min_nan(s[i] * scale - log_sum, 0)) : 0.0f;
      const float masked = kept[i] ? d_p[i] * dropout.scale : 0.0f;
      d_s_tile[i * kLanes + lane] = p * (masked - delta);
    }
    __syncwarp();
    add_product<Width>(acc, d_s_tile, k_tile);
  }
  store_rows<Width>(x.d_qkv + (tile.start + first) * stride + tile.head * Width, stride, own, acc,
                    scale);
}

template <int Width>
__global__ void __launch_bounds__(kThreads, 2)
    attention_backward_f32_kernel(AttentionBatch batch, AttentionDropout dropout, Operands x) {
  const AttentionTile tile(batch, kAttentionTile);
  if (tile.size <= 0) return;
  if (blockIdx.y == 0)
    key_gradients<Width>(tile, batch, dropout, x);
  else
    query_gradients<Width>(tile, batch, dropout, x);
}

}  // namespace

void attention_backward_f32(CudaOps& ops, const AttentionBackward& args,
                            const Sequences& sequences) {
  const AttentionShape shape = attention_shape(ops, args.qkv, args.heads, sequences);
  const KernelPlan plan = attention_backward_f32_plan(shape);
  const Operands x = {.d_qkv = args.d_qkv.as<float>(),
                      .d_out = args.d_out.as<float>(),
                      .out = args.out.as<float>(),
                      .log_sum_exp = args.log_sum_exp.as<float>(),
                      .qkv = args.qkv.as<float>()};
  for_width(shape.width, [&](auto width) {
    launch(ops, plan, attention_backward_f32_kernel<width>,
           attention_batch(sequences, args.heads, plan), attention_dropout(args.dropout), x);
  });
}

}  // namespace maxim

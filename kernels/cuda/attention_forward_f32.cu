// The forward pass of attention of f32 activations with plain FMA; formulas in
// kernels/cuda/attention.cu. A warp owns 8 query rows of a head.
//
//   longest <= 256   (where shared memory holds it) a block has up to 96 rows and all K and V of
//                    its head in shared memory; all scores of a row are in the registers of its
//                    warp, a lane having keys lane, lane + 32, ..., so the maximum is exact
//   longer           64 rows; tiles of 32 keys, one a lane; online softmax
//
// Sums run over ascending keys, those of a row's probabilities by lane first. 4 r n d FLOPs a head
// of r rows and n keys.
#include "kernels/cuda/attention_f32.cuh"
#include "kernels/cuda/ptx.cuh"

namespace maxim {
namespace {

// Starts to copy rows x[0 .. rows) that are `stride` floats apart into a tile of `capacity` rows
// without padding, zeros behind. The 16-byte pieces of row r are permuted by xor with r & swizzle.
template <int Width>
__device__ __forceinline__ void copy_rows(float* tile, int capacity, const float* x, int64_t stride,
                                          int rows, int swizzle) {
  constexpr int kPieces = Width / 4;
  for (int i = threadIdx.x; i < capacity * kPieces; i += blockDim.x) {
    const int row = i / kPieces, piece = i % kPieces;
    cp_async_16(tile + row * Width + (piece ^ (row & swizzle)) * 4, x + row * stride + piece * 4,
                row < rows ? 16 : 0);
  }
}

// Most keys of the batch: 32 Chunks.
template <int Width, int Chunks>
__global__ void __launch_bounds__(kAttentionShortF32Warps* kWarp)
    attention_forward_short_f32_kernel(AttentionBatch batch, AttentionDropout dropout, float* out,
                                       float* log_sum_exp, const float* qkv) {
  const int tile_rows = static_cast<int>(blockDim.x) / kWarp * kOwned;
  const AttentionTile tile(batch, tile_rows);
  if (tile.size <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t hidden = int64_t{batch.heads} * Width, stride = 3 * hidden;
  const float* const q = qkv + tile.start * stride + tile.head * Width;
  const int padded = (tile.keys + kLanes - 1) / kLanes * kLanes;
  float* const q_tile = shared_memory<float>();
  float* const k_tile = q_tile + tile_rows * Width;
  float* const v_tile = k_tile + padded * Width;
  copy_rows<Width>(q_tile, tile_rows, q + tile.first * stride, stride, tile.size, 0);
  copy_rows<Width>(k_tile, padded, q + hidden, stride, tile.keys, 7);  // 8 lanes read 8 rows
  cp_async_commit();
  copy_rows<Width>(v_tile, padded, q + 2 * hidden, stride, tile.keys, 0);
  cp_async_commit();

  float* const q_own = q_tile + warp * kOwned * Width;
  const int first = tile.first + warp * kOwned, own = tile.rows - first;
  float s[Chunks][kOwned] = {};
  float factor = 0;  // of row `lane`
  cp_async_wait<1>();
  __syncthreads();
  if (own > 0) {
#pragma unroll 1
    for (int c = 0; c < Width; c += 4) {
      Float4 x[kOwned];
#pragma unroll
      for (int i = 0; i < kOwned; ++i) x[i] = Float4::load(q_own + i * Width + c);
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (kLanes * chunk >= tile.keys) break;
        const Float4 y =
            Float4::load(k_tile + (kLanes * chunk + lane) * Width + (c ^ lane % 8 * 4));
#pragma unroll
        for (int i = 0; i < kOwned; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) s[chunk][i] = fmaf(x[i][j], y[j], s[chunk][i]);
      }
    }
    const float scale = 1 / sqrtf(static_cast<float>(Width));
    float row_most = 0, row_sum = 1;  // of row `lane`
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      float most = -INFINITY, sum = 0;
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (kLanes * chunk >= tile.keys) break;
        s[chunk][i] = kLanes * chunk + lane < tile.keys ? s[chunk][i] * scale : -INFINITY;
        most = fmaxf(most, s[chunk][i]);
      }
      most = warp_max(most);
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (kLanes * chunk >= tile.keys) break;
        s[chunk][i] = expf(s[chunk][i] - most);
        sum += s[chunk][i];
      }
      sum = warp_sum(sum);
      if (lane == i) row_most = most, row_sum = sum;
    }
    factor = dropout.scale / row_sum;
    if (lane < min(own, kOwned))
      log_sum_exp[(tile.start + first + lane) * batch.heads + tile.head] = row_most + logf(row_sum);
  }
  cp_async_wait<0>();
  __syncthreads();
  if (own <= 0) return;
  const int drawn = min(first + KeptKeys::drawn_row(), tile.rows - 1);
  const int position = batch.positions[tile.start + drawn];
  float* const p_tile = q_own;  // whose rows have been read
  float acc[kOwned][Width / kWarp] = {};
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    if (kLanes * chunk >= tile.keys) break;
    const KeptKeys kept(dropout, tile, position, kLanes * chunk);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) p_tile[i * kLanes + lane] = kept[i] ? s[chunk][i] : 0.0f;
    __syncwarp();
    add_product<Width, Width>(acc, p_tile, v_tile + kLanes * chunk * Width);
  }
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    const float row_factor = __shfl_sync(kAllLanes, factor, i);
#pragma unroll
    for (int c = 0; c < Width / kWarp; ++c) acc[i][c] *= row_factor;
  }
  store_rows<Width>(out + (tile.start + first) * hidden + tile.head * Width, hidden, own, acc, 1);
}

template <int Width>
__global__ void __launch_bounds__(kThreads, 2)
    attention_forward_long_f32_kernel(AttentionBatch batch, AttentionDropout dropout, float* out,
                                      float* log_sum_exp, const float* qkv) {
  const AttentionTile tile(batch, kAttentionTile);
  if (tile.size <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t hidden = int64_t{batch.heads} * Width, stride = 3 * hidden;
  const float* q = qkv + tile.start * stride + tile.head * Width;
  const float *k = q + hidden, *v = k + hidden;
  float* const q_tile = shared_memory<float>();
  float* const k_tile = q_tile + kAttentionTile * kRow<Width>;
  float* const v_tile = k_tile + kLanes * kRow<Width>;
  float* const p_tile = v_tile + kLanes * kRow<Width> + warp * kOwned * kLanes;
  const float* const q_own = q_tile + warp * kOwned * kRow<Width>;
  const int first = tile.first + warp * kOwned, own = tile.rows - first;
  const int drawn = min(first + KeptKeys::drawn_row(), tile.rows - 1);
  const int position = batch.positions[tile.start + drawn];
  const float scale = 1 / sqrtf(static_cast<float>(Width));

  load_rows<Width>(q_tile, kAttentionTile, q + tile.first * stride, stride, tile.size);
  float acc[kOwned][Width / kWarp] = {}, most[kOwned], sum[kOwned];  // a lane sums its own keys
#pragma unroll
  for (int i = 0; i < kOwned; ++i) most[i] = -INFINITY, sum[i] = 0;
  for (int key = 0; key < tile.keys; key += kLanes) {
    __syncthreads();
    load_rows<Width>(k_tile, kLanes, k + key * stride, stride, tile.keys - key);
    load_rows<Width>(v_tile, kLanes, v + key * stride, stride, tile.keys - key);
    __syncthreads();
    if (own <= 0) continue;
    float s[kOwned];
    dots<Width>(s, q_own, k_tile + lane * kRow<Width>);
    const KeptKeys kept(dropout, tile, position, key);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const float score = key + lane < tile.keys ? s[i] * scale : -INFINITY;
      const float new_most = fmaxf(most[i], warp_max(score));
      const float rescale = expf(most[i] - new_most), p = expf(score - new_most);
      most[i] = new_most;
      sum[i] = sum[i] * rescale + p;
#pragma unroll
      for (int c = 0; c < Width / kWarp; ++c) acc[i][c] *= rescale;
      p_tile[i * kLanes + lane] = kept[i] ? p : 0.0f;
    }
    __syncwarp();
    add_product<Width>(acc, p_tile, v_tile);
  }
  if (own <= 0) return;
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    const float total = warp_sum(sum[i]);
#pragma unroll
    for (int c = 0; c < Width / kWarp; ++c) acc[i][c] *= dropout.scale / total;
    if (i < own && lane == 0)
      log_sum_exp[(tile.start + first + i) * batch.heads + tile.head] = most[i] + logf(total);
  }
  store_rows<Width>(out + (tile.start + first) * hidden + tile.head * Width, hidden, own, acc, 1);
}

}  // namespace

void attention_forward_f32(CudaOps& ops, const AttentionForward& args, const Sequences& sequences) {
  const AttentionShape shape = attention_shape(ops, args.qkv, args.heads, sequences);
  const KernelPlan plan = attention_forward_plan(shape);
  for_width(shape.width, [&](auto width) {
    constexpr int kWidth = width;
    const auto start = [&](auto kernel) {
      launch(ops, plan, kernel, attention_batch(sequences, args.heads, plan),
             attention_dropout(args.dropout), args.out.as<float>(), args.log_sum_exp.as<float>(),
             args.qkv.as<float>());
    };
    if (!attention_forward_is_short(shape))
      start(attention_forward_long_f32_kernel<kWidth>);
    else if (shape.longest <= 2 * kLanes)
      start(attention_forward_short_f32_kernel<kWidth, 2>);
    else if (shape.longest <= 4 * kLanes)
      start(attention_forward_short_f32_kernel<kWidth, 4>);
    else
      start(attention_forward_short_f32_kernel<kWidth, kAttentionShort / kLanes>);
  });
}

}  // namespace maxim

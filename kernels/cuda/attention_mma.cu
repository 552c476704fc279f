// Attention of 16-bit activations on tensor cores (mma.sync m16n8k16, sm_80 and later); formulas in
// kernels/cuda/attention.cu. A warp owns 16 query rows of a head and goes through the keys 32 at a
// time; their probabilities pass from one product to the next in registers. One exp2 a score.
//
//   forward, longest <= 256    a block has up to 64 rows and all K and V of its head in shared
//                              memory; all scores of a row are in registers, so the maximum is
//                              exact
//   forward, longer            128 rows; tiles of 64 keys, two in flight; online softmax
//   backward, longest <= 256   a block has a head. For each 64 keys the warps leave m p and d_s of
//                              their rows in shared memory and add to d_q in registers; then they
//                              share d_v = (m p)^T d_out and d_k = d_s^T q of those keys. Each
//                              score is computed once: 10 r n d FLOPs
//   backward, longer           d_k and d_v by blocks of 64 keys that go through the query rows, d_q
//                              by blocks of 128 rows that go through the keys: 14 r n d FLOPs.
//                              delta waits in d_q until d_q is written, so that no memory is taken
//
// Products are summed in f32; m p and d_s are rounded to the activations' type as their operands.
// Sums run over ascending rows or chunks of keys, whatever the other warps do.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace maxim {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;
constexpr int kKeyTile = kAttentionKeyTile;
constexpr int kLongThreads = kAttentionLongWarps * kWarp;

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

// The greatest score and the sum of a lane's two rows so far; scores in exponents of 2. The sum is
// of the lane's own keys.
struct SoftmaxRows {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Scores of keys [0, keys) become 2^(score - most), and those behind 0. Returns in `rescale` what
  // earlier results must be multiplied by. Chunks that begin behind `keys` are left alone.
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
      const float now = fmaxf(most[half], quad_max(greatest[half]) * scale);
      rescale[half] = exp2_approximate(most[half] - now);
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
          s[c][t][e] = exp2_approximate(fmaf(s[c][t][e], scale, -most[e / 2]));
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

// The warp's rows of a tile of the block: 16 from `row`, the first at row `first` of the sequence,
// `own` of them real. A lane's two rows, clamped to real ones.
struct WarpRows {
  int row, first, own;
  int lane_rows[2], positions[2];

  __device__ __forceinline__ WarpRows(const AttentionBatch& batch, const AttentionTile& tile,
                                      int tile_first)
      : row(threadIdx.x / kWarp * 16), first(tile_first + row), own(tile.rows - first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lane_rows[half] = min(first + offset(half), tile.rows - 1);
      positions[half] = batch.positions[tile.start + lane_rows[half]];
    }
  }
  static __device__ __forceinline__ int offset(int half) {
    return static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
  }
};

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
    if (warp.offset(half) < warp.own && threadIdx.x % 4 == 0)
      log_sum_exp[(tile.start + warp.lane_rows[half]) * heads + tile.head] =
          (rows.most[half] + log2f(sum)) * kLn2;
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

  const WarpRows warp(batch, tile, tile.first);
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
  add_values<T, Width>(acc, s, v_tile, dropout, tile, warp.positions, 0, tile.keys);
  finish_forward<T, Width>(out, log_sum_exp, acc, rows, warp, tile, batch.heads, dropout.scale);
}

template <class T, int Width>
__global__ void __launch_bounds__(kLongThreads)
    attention_forward_long_kernel(AttentionBatch batch, AttentionDropout dropout, T* out,
                                  float* log_sum_exp, const T* qkv) {
  const AttentionTile tile(batch, kAttentionLongTile);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
  const SharedTile<T, Width> q_tile{shared_memory<T>()};
  T* const stages = q_tile.data + kAttentionLongTile * Width;
  const auto k_tile = [&](int i) {
    return SharedTile<T, Width>{stages + i % 2 * 2 * kKeyTile * Width};
  };
  const auto v_tile = [&](int i) {
    return SharedTile<T, Width>{k_tile(i).data + kKeyTile * Width};
  };
  const auto copy = [&](int i) {
    const int key = i * kKeyTile;
    copy_keys(k_tile(i), kKeyTile, x.k + key * x.stride, x.stride, tile.keys - key);
    copy_keys(v_tile(i), kKeyTile, x.v + key * x.stride, x.stride, tile.keys - key);
    cp_async_commit();
  };
  copy_rows(q_tile, kAttentionLongTile, x.q + tile.first * x.stride, x.stride, tile.size);
  copy(0);

  const WarpRows warp(batch, tile, tile.first);
  SoftmaxRows rows;
  float acc[Width / 8][4] = {};
  for (int i = 0; i * kKeyTile < tile.keys; ++i) {
    const int keys = tile.keys - i * kKeyTile;
    cp_async_wait<0>();
    __syncthreads();  // tile i is there, and tile i - 1 has been read
    if (keys > kKeyTile) copy(i + 1);
    if (warp.own <= 0) continue;
    uint32_t q[Width / 16][4];
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) q_tile.a(q[k], warp.row, 16 * k);
    float s[kKeyTile / kChunk][4][4], rescale[2];
#pragma unroll
    for (int c = 0; c < kKeyTile / kChunk; ++c) dots<T, Width>(s[c], q, k_tile(i), kChunk * c);
    rows.add(s, rescale, keys, kExponentScale<Width>);
#pragma unroll
    for (int n = 0; n < Width / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] *= rescale[e / 2];
    add_values<T, Width>(acc, s, v_tile(i), dropout, tile, warp.positions, i * kKeyTile, keys);
  }
  cp_async_wait<0>();  // without keys, tile 0
  if (warp.own > 0)
    finish_forward<T, Width>(out, log_sum_exp, acc, rows, warp, tile, batch.heads, dropout.scale);
}

// The gradients of the scores of a warp's 16 query rows, 32 keys at a time.
template <class T, int Width>
struct ScoreGradients {
  SharedTile<T, Width> q, d_out;
  int row;           // of the warp's rows in these tiles
  float log_sum[2];  // of the lane's rows, in exponents of 2; infinite for rows that are not real
  float delta[2];
  int positions[2];

  // p = m p / dropout's scale, d_s = d_s sqrt(d), as packed results, of the 32 keys whose slots
  // begin at `slot` of k and v and whose first is `key`.
  __device__ __forceinline__ void operator()(uint32_t (&p)[4][2], uint32_t (&d_s)[4][2],
                                             SharedTile<T, Width> k, SharedTile<T, Width> v,
                                             int slot, int key, const AttentionTile& tile,
                                             const AttentionDropout& dropout) const {
    float s[4][4], d_p[4][4];
    multiply(s, q, k, slot);
    multiply(d_p, d_out, v, slot);
    const KeptKeys kept(dropout, tile, positions, key);
    const bool all_keys = key + kChunk <= tile.keys;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float masked[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2;
        float x = exp2_approximate(fmaf(s[t][e], kExponentScale<Width>, -log_sum[half]));
        if (!all_keys && key + key_of(t, e) >= tile.keys) x = 0;
        const bool keep = kept(t, e);
        masked[e] = keep ? x : 0;
        s[t][e] = x * ((keep ? d_p[t][e] * dropout.scale : 0) - delta[half]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        p[t][half] = pack_pair<T>(masked[2 * half], masked[2 * half + 1]);
        d_s[t][half] = pack_pair<T>(s[t][2 * half], s[t][2 * half + 1]);
      }
    }
  }

 private:
  __device__ __forceinline__ void multiply(float (&s)[4][4], SharedTile<T, Width> x,
                                           SharedTile<T, Width> y, int slot) const {
    uint32_t a[Width / 16][4];
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) x.a(a[k], row, 16 * k);
    dots<T, Width>(s, a, y, slot);
  }
};

// Leaves 16 x 32 packed results in rows [row, row + 16), columns [column, column + 32) of a tile.
template <class T>
__device__ __forceinline__ void leave(SharedTile<T, kKeyTile> tile, int row, int column,
                                      const uint32_t (&x)[4][2]) {
#pragma unroll
  for (int t = 0; t < 4; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint32_t*>(tile.piece(row + WarpRows::offset(half), column / 8 + t) +
                                   threadIdx.x % 4 * 2) = x[t][half];
}

// A warp's share of d_k or d_v of 64 keys: 32 keys and 32 columns.
struct KeyShare {
  int keys;    // first slot
  int column;  // first column
  bool of_v;   // d_v = p^T d_out, else d_k = d_s^T q

  __device__ __forceinline__ explicit KeyShare(int i)
      : keys(i / 2 % 2 * kChunk), column(i / 4 * 32), of_v(i % 2 == 0) {}
};

template <int Width>
constexpr int kShares = 2 * 2 * (Width / 32);

// acc += w^T x over rows [0, rows) of both.
template <class T, int Width>
__device__ __forceinline__ void add_share(float (&acc)[2][4][4], const KeyShare& share,
                                          SharedTile<T, kKeyTile> w, SharedTile<T, Width> x,
                                          int rows) {
  for (int row = 0; row < rows; row += 16) {
    uint32_t a[2][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      w.a_transposed(a[i], row, share.keys + 16 * i);
      x.b(b[i], row, share.column + 16 * i);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) mma_two<T>(acc[i][2 * j], acc[i][2 * j + 1], a[i], b[j]);
  }
}

// Writes a share of the 64 keys from `key`; exactly zero behind the last key, whatever d_out holds.
template <class T, int Width>
__device__ __forceinline__ void store_share(T* d_qkv, float (&acc)[2][4][4], const KeyShare& share,
                                            const AttentionTile& tile, int heads, int key,
                                            const AttentionDropout& dropout) {
  const int64_t hidden = int64_t{heads} * Width, stride = 3 * hidden;
  T* const first = d_qkv + tile.start * stride + (share.of_v ? 2 : 1) * hidden + tile.head * Width +
                   share.column;
  const float scale = share.of_v ? dropout.scale : kExponentScale<Width> * kLn2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto key_of_row = [&](int row) { return key + key_slot(share.keys + 16 * i + row); };
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factor[half] = scale;
      if (key_of_row(WarpRows::offset(half)) < tile.keys) continue;
#pragma unroll
      for (int t = 0; t < 4; ++t) acc[i][t][2 * half] = acc[i][t][2 * half + 1] = 0;
    }
    store_rows<T>(acc[i], factor, [&](int row) -> T* {
      return key_of_row(row) < tile.rows ? first + key_of_row(row) * stride : nullptr;
    });
  }
}

// Writes a warp's rows of d_q.
template <class T, int Width>
__device__ __forceinline__ void store_queries(T* d_qkv, float (&acc)[Width / 8][4],
                                              const WarpRows& warp, const AttentionTile& tile,
                                              int heads) {
  const int64_t stride = int64_t{3} * heads * Width;
  T* const first = d_qkv + (tile.start + warp.first) * stride + tile.head * Width;
  constexpr float kScale = kExponentScale<Width> * kLn2;
#pragma unroll
  for (int c = 0; c < Width; c += 32)
    store_rows<T>(acc + c / 8, {kScale, kScale}, [&](int row) -> T* {
      return row < warp.own ? first + row * stride + c : nullptr;
    });
}

template <class T, int Width>
__global__ void __launch_bounds__(kAttentionShort * 2)
    attention_backward_short_kernel(AttentionBatch batch, AttentionDropout dropout, T* d_qkv,
                                    const T* d_out, const T* out, const float* log_sum_exp,
                                    const T* qkv) {
  const int tile_rows = static_cast<int>(blockDim.x) / 2;
  const AttentionTile tile(batch, tile_rows);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
  const SharedTile<T, Width> q_tile{shared_memory<T>()},
      d_out_tile{q_tile.data + tile_rows * Width};
  const SharedTile<T, kKeyTile> p_tile{d_out_tile.data + tile_rows * Width},
      d_s_tile{p_tile.data + tile_rows * kKeyTile};
  T* const stages = d_s_tile.data + tile_rows * kKeyTile;
  const auto k_tile = [&](int i) {
    return SharedTile<T, Width>{stages + i % 2 * 2 * kKeyTile * Width};
  };
  const auto v_tile = [&](int i) {
    return SharedTile<T, Width>{k_tile(i).data + kKeyTile * Width};
  };
  const auto copy = [&](int i) {
    const int key = i * kKeyTile;
    copy_keys(k_tile(i), kKeyTile, x.k + key * x.stride, x.stride, tile.keys - key);
    copy_keys(v_tile(i), kKeyTile, x.v + key * x.stride, x.stride, tile.keys - key);
    cp_async_commit();
  };
  const int64_t at = tile.start * x.hidden + tile.head * Width;
  const SharedTile<T, Width> out_tile{p_tile.data};  // until p_tile is wanted
  copy_rows(q_tile, tile_rows, x.q, x.stride, tile.rows);
  copy_rows(d_out_tile, tile_rows, d_out + at, x.hidden, tile.rows);
  copy_rows(out_tile, tile_rows, out + at, x.hidden, tile.rows);
  copy(0);

  const WarpRows warp(batch, tile, 0);
  ScoreGradients<T, Width> gradients{q_tile, d_out_tile, warp.row, {}, {}, {}};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    gradients.positions[half] = warp.positions[half];
    const int64_t row = tile.start + warp.lane_rows[half];
    gradients.log_sum[half] = warp.offset(half) < warp.own
                                  ? log_sum_exp[row * batch.heads + tile.head] * kLog2E
                                  : INFINITY;
  }
  cp_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < Width / 16; ++k) {
    uint32_t a[4], b[4];
    d_out_tile.a(a, warp.row, 16 * k);
    out_tile.a(b, warp.row, 16 * k);
#pragma unroll
    for (int e = 0; e < 4; ++e) {  // e % 2: the lower half of the rows
      const float2 y = unpack_pair<T>(a[e]), z = unpack_pair<T>(b[e]);
      gradients.delta[e % 2] = fmaf(y.x, z.x, fmaf(y.y, z.y, gradients.delta[e % 2]));
    }
  }
  gradients.delta[0] = quad_sum(gradients.delta[0]);
  gradients.delta[1] = quad_sum(gradients.delta[1]);

  float d_q[Width / 8][4] = {};
  for (int i = 0; i * kKeyTile < tile.rows; ++i) {
    const int key = i * kKeyTile;
    cp_async_wait<0>();
    __syncthreads();  // keys i are there; p_tile, d_s_tile and keys i - 1 have been read
    if (key + kKeyTile < tile.keys) copy(i + 1);
    if (warp.own > 0) {
#pragma unroll 1
      for (int c = 0; c < kKeyTile && key + c < tile.keys; c += kChunk) {
        uint32_t p[4][2], d_s[4][2];
        gradients(p, d_s, k_tile(i), v_tile(i), c, key + c, tile, dropout);
        leave(p_tile, warp.row, c, p);
        leave(d_s_tile, warp.row, c, d_s);
        add_product<T, Width>(d_q, d_s, k_tile(i), c);
      }
    }
    __syncthreads();
    for (int share = threadIdx.x / kWarp; share < kShares<Width>; share += blockDim.x / kWarp) {
      const KeyShare mine(share);
      float acc[2][4][4] = {};
      if (key + mine.keys < tile.keys)
        add_share(acc, mine, mine.of_v ? p_tile : d_s_tile, mine.of_v ? d_out_tile : q_tile,
                  tile.rows);
      store_share<T, Width>(d_qkv, acc, mine, tile, batch.heads, key, dropout);
    }
  }
  if (warp.own > 0) store_queries<T, Width>(d_qkv, d_q, warp, tile, batch.heads);
}

template <class T, int Width>
__global__ void __launch_bounds__(kLongThreads)
    attention_backward_keys_mma_kernel(AttentionBatch batch, AttentionDropout dropout, T* d_qkv,
                                       const T* d_out, const float* log_sum_exp, const T* qkv) {
  constexpr int kRows = kAttentionLongTile;
  const AttentionTile tile(batch, kKeyTile);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
  const T* const deltas = d_qkv + (x.q - qkv);
  const T* const d_o = d_out + tile.start * x.hidden + tile.head * Width;
  const SharedTile<T, Width> k_tile{shared_memory<T>()}, v_tile{k_tile.data + kKeyTile * Width};
  const SharedTile<T, kKeyTile> p_tile{v_tile.data + kKeyTile * Width},
      d_s_tile{p_tile.data + kRows * kKeyTile};
  T* const stages = d_s_tile.data + kRows * kKeyTile;
  const auto q_tile = [&](int i) {
    return SharedTile<T, Width>{stages + i % 2 * 2 * kRows * Width};
  };
  const auto d_out_tile = [&](int i) {
    return SharedTile<T, Width>{q_tile(i).data + kRows * Width};
  };
  const auto copy = [&](int i) {
    const int row = i * kRows;
    copy_rows(q_tile(i), kRows, x.q + row * x.stride, x.stride, tile.rows - row);
    copy_rows(d_out_tile(i), kRows, d_o + row * x.hidden, x.hidden, tile.rows - row);
    cp_async_commit();
  };
  const bool any_keys = tile.first < tile.keys;
  if (any_keys) {
    copy_keys(k_tile, kKeyTile, x.k + tile.first * x.stride, x.stride, tile.keys - tile.first);
    copy_keys(v_tile, kKeyTile, x.v + tile.first * x.stride, x.stride, tile.keys - tile.first);
    copy(0);
  }
  const int share = threadIdx.x / kWarp;
  const KeyShare mine(share);
  float acc[2][4][4] = {};
  // A tile beyond the keys only writes its zeros.
  for (int i = 0; i * kRows < (any_keys ? tile.rows : 0); ++i) {
    const WarpRows warp(batch, tile, i * kRows);
    ScoreGradients<T, Width> gradients{q_tile(i), d_out_tile(i), warp.row, {}, {}, {}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool real = warp.offset(half) < warp.own;
      const int64_t row = warp.lane_rows[half];
      gradients.positions[half] = warp.positions[half];
      gradients.log_sum[half] =
          real ? log_sum_exp[(tile.start + row) * batch.heads + tile.head] * kLog2E : INFINITY;
      gradients.delta[half] = real ? *reinterpret_cast<const float*>(deltas + row * x.stride) : 0;
    }
    cp_async_wait<0>();
    __syncthreads();  // rows i are there; p_tile, d_s_tile and rows i - 1 have been read
    if ((i + 1) * kRows < tile.rows) copy(i + 1);
    if (warp.own > 0) {
#pragma unroll 1
      for (int c = 0; c < kKeyTile && tile.first + c < tile.keys; c += kChunk) {
        uint32_t p[4][2], d_s[4][2];
        gradients(p, d_s, k_tile, v_tile, c, tile.first + c, tile, dropout);
        leave(p_tile, warp.row, c, p);
        leave(d_s_tile, warp.row, c, d_s);
      }
    }
    __syncthreads();
    if (share < kShares<Width> && tile.first + mine.keys < tile.keys)
      add_share(acc, mine, mine.of_v ? p_tile : d_s_tile, mine.of_v ? d_out_tile(i) : q_tile(i),
                min(kRows, tile.rows - i * kRows));
  }
  if (share < kShares<Width>)
    store_share<T, Width>(d_qkv, acc, mine, tile, batch.heads, tile.first, dropout);
}

template <class T, int Width>
__global__ void __launch_bounds__(kLongThreads)
    attention_backward_queries_mma_kernel(AttentionBatch batch, AttentionDropout dropout, T* d_qkv,
                                          const T* d_out, const float* log_sum_exp, const T* qkv) {
  constexpr int kRows = kAttentionLongTile;
  const AttentionTile tile(batch, kRows);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
  const T* const deltas = d_qkv + (x.q - qkv);
  const SharedTile<T, Width> q_tile{shared_memory<T>()}, d_out_tile{q_tile.data + kRows * Width};
  T* const stages = d_out_tile.data + kRows * Width;
  const auto k_tile = [&](int i) {
    return SharedTile<T, Width>{stages + i % 2 * 2 * kKeyTile * Width};
  };
  const auto v_tile = [&](int i) {
    return SharedTile<T, Width>{k_tile(i).data + kKeyTile * Width};
  };
  const auto copy = [&](int i) {
    const int key = i * kKeyTile;
    copy_keys(k_tile(i), kKeyTile, x.k + key * x.stride, x.stride, tile.keys - key);
    copy_keys(v_tile(i), kKeyTile, x.v + key * x.stride, x.stride, tile.keys - key);
    cp_async_commit();
  };
  copy_rows(q_tile, kRows, x.q + tile.first * x.stride, x.stride, tile.size);
  copy_rows(d_out_tile, kRows, d_out + (tile.start + tile.first) * x.hidden + tile.head * Width,
            x.hidden, tile.size);
  copy(0);

  const WarpRows warp(batch, tile, tile.first);
  ScoreGradients<T, Width> gradients{q_tile, d_out_tile, warp.row, {}, {}, {}};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool real = warp.offset(half) < warp.own;
    const int64_t row = warp.lane_rows[half];
    gradients.positions[half] = warp.positions[half];
    gradients.log_sum[half] =
        real ? log_sum_exp[(tile.start + row) * batch.heads + tile.head] * kLog2E : INFINITY;
    gradients.delta[half] = real ? *reinterpret_cast<const float*>(deltas + row * x.stride) : 0;
  }
  float d_q[Width / 8][4] = {};
  for (int i = 0; i * kKeyTile < tile.keys; ++i) {
    const int key = i * kKeyTile;
    cp_async_wait<0>();
    __syncthreads();  // keys i are there, and keys i - 1 have been read
    if (key + kKeyTile < tile.keys) copy(i + 1);
    if (warp.own <= 0) continue;
#pragma unroll 1
    for (int c = 0; c < kKeyTile && key + c < tile.keys; c += kChunk) {
      uint32_t p[4][2], d_s[4][2];
      gradients(p, d_s, k_tile(i), v_tile(i), c, key + c, tile, dropout);
      add_product<T, Width>(d_q, d_s, k_tile(i), c);
    }
  }
  cp_async_wait<0>();  // without keys, tile 0
  __syncwarp();        // all lanes have their deltas
  if (warp.own > 0) store_queries<T, Width>(d_qkv, d_q, warp, tile, batch.heads);
}

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

}  // namespace

void attention_forward_mma(CudaOps& ops, const AttentionForward& args, const Sequences& sequences) {
  const AttentionShape shape = attention_shape(args.qkv, args.heads, sequences);
  const KernelPlan plan = attention_forward_plan(shape);
  for_type_and_width(shape, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = width;
    const auto start = [&](auto kernel) {
      launch(ops, plan, kernel, attention_batch(sequences, args.heads, plan),
             attention_dropout(args.dropout), args.out.as<T>(), args.log_sum_exp.as<float>(),
             args.qkv.as<T>());
    };
    if (shape.longest > kAttentionShort)
      start(attention_forward_long_kernel<T, kWidth>);
    else if (shape.longest > 128)
      start(attention_forward_short_kernel<T, ShortHead<kWidth, 8>>);
    else if (shape.longest > 64)
      start(attention_forward_short_kernel<T, ShortHead<kWidth, 4>>);
    else
      start(attention_forward_short_kernel<T, ShortHead<kWidth, 2>>);
  });
}

void attention_backward_mma(CudaOps& ops, const AttentionBackward& args,
                            const Sequences& sequences) {
  const AttentionShape shape = attention_shape(args.qkv, args.heads, sequences);
  for_type_and_width(shape, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = width;
    const auto start = [&](const KernelPlan& plan, auto kernel, auto... out) {
      launch(ops, plan, kernel, attention_batch(sequences, args.heads, plan),
             attention_dropout(args.dropout), args.d_qkv.as<T>(), args.d_out.as<T>(), out...,
             args.log_sum_exp.as<float>(), args.qkv.as<T>());
    };
    if (shape.longest <= kAttentionShort) {
      start(attention_backward_short_plan(shape), attention_backward_short_kernel<T, kWidth>,
            args.out.as<T>());
    } else {
      attention_delta(ops, args, shape);
      start(attention_backward_keys_plan(shape), attention_backward_keys_mma_kernel<T, kWidth>);
      start(attention_backward_queries_plan(shape),
            attention_backward_queries_mma_kernel<T, kWidth>);
    }
  });
}

}  // namespace maxim

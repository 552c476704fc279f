// The backward pass of attention of 16-bit activations on tensor cores (mma.sync m16n8k16, sm_80
// and later); formulas in kernels/cuda/attention.cu. A warp owns 16 query rows of a head and
// computes m p and d_s of 32 keys at a time, with one exp2 a score. Both pass to d_q in registers,
// and to d_k and d_v, which sum over all rows, through shared memory.
//
//   short    (256 rows at most, where shared memory holds them) a block has a head: for each 64
//            keys the warps leave m p and d_s of their rows in shared memory and add to d_q in
//            registers; then they share d_v = (m p)^T d_out and d_k = d_s^T q of those keys. Each
//            score is computed once: 10 r n d FLOPs a head of r rows and n keys
//   longer   d_k and d_v by blocks of 64 keys that go through the query rows, d_q by blocks of 128
//            rows that go through the keys: 14 r n d FLOPs. delta waits in d_q until d_q is
//            written, so that no memory is taken
//
// Products are summed in f32; m p and d_s are rounded to the activations' type as operands. Sums
// run over ascending rows or chunks of keys, whatever the other warps do.
#include "kernels/cuda/attention_mma.cuh"

namespace maxim {
namespace {

// The gradients of the scores of a warp's 16 query rows, 32 keys at a time.
template <class T, int Width>
struct ScoreGradients {
  SharedTile<T, Width> q, d_out;
  int row;           // of the warp's rows in these tiles
  float log_sum[2];  // of the lane's rows, in exponents of 2; infinite for rows that are not real
  float delta[2] = {0, 0};
  int first;  // of the warp's rows in their sequence

  __device__ __forceinline__ ScoreGradients(SharedTile<T, Width> q_tile,
                                            SharedTile<T, Width> d_out_tile, const WarpRows& warp,
                                            const float* log_sum_exp, int heads)
      : q(q_tile), d_out(d_out_tile), row(warp.row), first(warp.first) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      log_sum[half] =
          warp.real(half) ? log_sum_exp[int64_t{warp.lane_rows[half]} * heads] * kLog2E : INFINITY;
  }

  // delta from where attention_delta_kernel left it in d_q.
  __device__ __forceinline__ void read_delta(const T* d_q, int64_t stride, const WarpRows& warp) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (warp.real(half))
        delta[half] = *reinterpret_cast<const float*>(d_q + warp.lane_rows[half] * stride);
  }
  // delta from the tiles.
  __device__ __forceinline__ void compute_delta(SharedTile<T, Width> out) {
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) {
      uint32_t a[4], b[4];
      d_out.a(a, row, 16 * k);
      out.a(b, row, 16 * k);
#pragma unroll
      for (int e = 0; e < 4; ++e) {  // e % 2: the lower half of the rows
        const float2 y = unpack_pair<T>(a[e]), z = unpack_pair<T>(b[e]);
        delta[e % 2] = fmaf(y.x, z.x, fmaf(y.y, z.y, delta[e % 2]));
      }
    }
    delta[0] = quad_sum(delta[0]);
    delta[1] = quad_sum(delta[1]);
  }

  // s = q k^T, d_p = d_out v^T for the 32 keys whose slots begin at `slot` of k and v.
  __device__ __forceinline__ void products(float (&s)[4][4], float (&d_p)[4][4],
                                           SharedTile<T, Width> k, SharedTile<T, Width> v,
                                           int slot) const {
    multiply(s, q, k, slot);
    multiply(d_p, d_out, v, slot);
  }

  // What dropout keeps of the 32 keys from `key`. A row's position is its number in its sequence.
  __device__ __forceinline__ KeptKeys draw(const AttentionDropout& dropout,
                                           const AttentionTile& tile, int key) const {
    const int positions[2] = {first + WarpRows::offset(0), first + WarpRows::offset(1)};
    return KeptKeys(dropout, tile, positions, key);
  }

  // p = m p / dropout's scale, d_s = d_s sqrt(d), as packed results, from the products with the 32
  // keys from `key`.
  __device__ __forceinline__ void operator()(uint32_t (&p)[4][2], uint32_t (&d_s)[4][2],
                                             float (&s)[4][4], const float (&d_p)[4][4],
                                             const KeptKeys& kept, int key,
                                             const AttentionTile& tile,
                                             const AttentionDropout& dropout) const {
    const bool all_keys = key + kChunk <= tile.keys;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float masked[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2;
        const float exponent = fmaf(s[t][e], kExponentScale<Width>, -log_sum[half]);
        float x = exp2_approximate(min_nan(exponent, 0));  // above 0 by the rounding of huge scores
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
#pragma unroll 1  // more would want more than 128 registers
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
  const SharedTile<T, Width> out_tile{p_tile.data};  // until p_tile is wanted
  const KeyStages<T, Width> stages{d_s_tile.data + tile_rows * kKeyTile, x, tile.keys};
  const int64_t at = tile.start * x.hidden + tile.head * Width;
  copy_rows(q_tile, tile_rows, x.q, x.stride, tile.rows);
  copy_rows(d_out_tile, tile_rows, d_out + at, x.hidden, tile.rows);
  copy_rows(out_tile, tile_rows, out + at, x.hidden, tile.rows);
  stages.copy(0);

  const WarpRows warp(tile, 0);
  ScoreGradients<T, Width> gradients(
      q_tile, d_out_tile, warp, log_sum_exp + tile.start * batch.heads + tile.head, batch.heads);
  cp_async_wait<0>();
  __syncthreads();
  gradients.compute_delta(out_tile);

  float d_q[Width / 8][4] = {};
  for (int i = 0; i * kKeyTile < tile.rows; ++i) {
    const int key = i * kKeyTile;
    cp_async_wait<0>();
    __syncthreads();  // keys i are there; p_tile, d_s_tile and keys i - 1 have been read
    if (key + kKeyTile < tile.keys) stages.copy(i + 1);
    if (warp.own > 0) {
#pragma unroll 1
      for (int c = 0; c < kKeyTile && key + c < tile.keys; c += kChunk) {
        // Drawn before the products: behind them, 128 registers are one too few on sm_100.
        const KeptKeys kept = gradients.draw(dropout, tile, key + c);
        float s[4][4], d_p[4][4];
        gradients.products(s, d_p, stages.k(i), stages.v(i), c);
        uint32_t p[4][2], d_s[4][2];
        gradients(p, d_s, s, d_p, kept, key + c, tile, dropout);
        leave(p_tile, warp.row, c, p);
        leave(d_s_tile, warp.row, c, d_s);
        add_product<T, Width>(d_q, d_s, stages.k(i), c);
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

// delta = sum over columns of d_out * out, into the first 4 bytes of each row and head of d_q.
template <class T, int Width>
__global__ void __launch_bounds__(kAttentionDeltaBlock)
    attention_delta_kernel(T* d_qkv, const T* d_out, const T* out, int64_t tokens, int heads) {
  constexpr int kElements = 16 / sizeof(T), kPieces = Width / kElements;  // lanes of a row and head
  const int64_t thread = int64_t{blockIdx.x} * kAttentionDeltaBlock + threadIdx.x;
  const int64_t element = thread / kPieces;
  const int piece = static_cast<int>(thread % kPieces);
  float sum = 0;
  if (element < tokens * heads) {
    const int64_t at = element * Width + piece * kElements;
    const auto x = Pack<T, kElements>::load(d_out + at), y = Pack<T, kElements>::load(out + at);
    for (int i = 0; i < kElements; ++i) sum = fmaf(x[i], y[i], sum);
  }
  for (int offset = kPieces / 2; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  const int64_t row = element / heads, head = element % heads;
  if (element < tokens * heads && piece == 0)
    *reinterpret_cast<float*>(d_qkv + (row * 3 * heads + head) * Width) = sum;
}

template <class T, int Width>
__global__ void __launch_bounds__(kAttentionKeyWarps* kWarp, 3)
    attention_backward_keys_mma_kernel(AttentionBatch batch, AttentionDropout dropout, T* d_qkv,
                                       const T* d_out, const float* log_sum_exp, const T* qkv) {
  constexpr int kRows = kAttentionKeyRows, kSharesAWarp = kShares<Width> / kAttentionKeyWarps;
  const AttentionTile tile(batch, kKeyTile);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
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
  const auto share = [](int i) {
    return KeyShare(i * kAttentionKeyWarps + static_cast<int>(threadIdx.x) / kWarp);
  };
  float acc[kSharesAWarp][2][4][4] = {};
  // A tile beyond the keys only writes its zeros.
  for (int i = 0; i * kRows < (any_keys ? tile.rows : 0); ++i) {
    const WarpRows warp(tile, i * kRows);
    ScoreGradients<T, Width> gradients(q_tile(i), d_out_tile(i), warp,
                                       log_sum_exp + tile.start * batch.heads + tile.head,
                                       batch.heads);
    gradients.read_delta(d_qkv + (x.q - qkv), x.stride, warp);
    cp_async_wait<0>();
    __syncthreads();  // rows i are there; p_tile, d_s_tile and rows i - 1 have been read
    if ((i + 1) * kRows < tile.rows) copy(i + 1);
    if (warp.own > 0) {
#pragma unroll 1
      for (int c = 0; c < kKeyTile && tile.first + c < tile.keys; c += kChunk) {
        float s[4][4], d_p[4][4];
        gradients.products(s, d_p, k_tile, v_tile, c);
        const KeptKeys kept = gradients.draw(dropout, tile, tile.first + c);
        uint32_t p[4][2], d_s[4][2];
        gradients(p, d_s, s, d_p, kept, tile.first + c, tile, dropout);
        leave(p_tile, warp.row, c, p);
        leave(d_s_tile, warp.row, c, d_s);
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kSharesAWarp; ++j) {
      const KeyShare mine = share(j);
      if (tile.first + mine.keys < tile.keys)
        add_share(acc[j], mine, mine.of_v ? p_tile : d_s_tile,
                  mine.of_v ? d_out_tile(i) : q_tile(i), min(kRows, tile.rows - i * kRows));
    }
  }
#pragma unroll
  for (int j = 0; j < kSharesAWarp; ++j)
    store_share<T, Width>(d_qkv, acc[j], share(j), tile, batch.heads, tile.first, dropout);
}

template <class T, int Width>
__global__ void __launch_bounds__(kAttentionLongWarps* kWarp, 2)
    attention_backward_queries_mma_kernel(AttentionBatch batch, AttentionDropout dropout, T* d_qkv,
                                          const T* d_out, const float* log_sum_exp, const T* qkv) {
  constexpr int kRows = kAttentionLongTile;
  const AttentionTile tile(batch, kRows);
  if (tile.size <= 0) return;
  const HeadRows<T, Width> x(qkv, tile, batch.heads);
  const SharedTile<T, Width> q_tile{shared_memory<T>()}, d_out_tile{q_tile.data + kRows * Width};
  const KeyStages<T, Width> stages{d_out_tile.data + kRows * Width, x, tile.keys};
  copy_rows(q_tile, kRows, x.q + tile.first * x.stride, x.stride, tile.size);
  copy_rows(d_out_tile, kRows, d_out + (tile.start + tile.first) * x.hidden + tile.head * Width,
            x.hidden, tile.size);
  stages.copy(0);

  const WarpRows warp(tile, tile.first);
  ScoreGradients<T, Width> gradients(
      q_tile, d_out_tile, warp, log_sum_exp + tile.start * batch.heads + tile.head, batch.heads);
  gradients.read_delta(d_qkv + (x.q - qkv), x.stride, warp);
  float d_q[Width / 8][4] = {};
  for (int i = 0; i * kKeyTile < tile.keys; ++i) {
    const int key = i * kKeyTile;
    cp_async_wait<0>();
    __syncthreads();  // keys i are there, and keys i - 1 have been read
    if (key + kKeyTile < tile.keys) stages.copy(i + 1);
    if (warp.own <= 0) continue;
#pragma unroll 1
    for (int c = 0; c < kKeyTile && key + c < tile.keys; c += kChunk) {
      float s[4][4], d_p[4][4];
      gradients.products(s, d_p, stages.k(i), stages.v(i), c);
      const KeptKeys kept = gradients.draw(dropout, tile, key + c);
      uint32_t p[4][2], d_s[4][2];
      gradients(p, d_s, s, d_p, kept, key + c, tile, dropout);
      add_product<T, Width>(d_q, d_s, stages.k(i), c);
    }
  }
  cp_async_wait<0>();  // without keys, tile 0
  __syncwarp();        // all lanes have their deltas
  if (warp.own > 0) store_queries<T, Width>(d_qkv, d_q, warp, tile, batch.heads);
}

}  // namespace

void attention_backward_mma(CudaOps& ops, const AttentionBackward& args,
                            const Sequences& sequences) {
  const AttentionShape shape = attention_shape(ops, args.qkv, args.heads, sequences);
  for_type_and_width(shape, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = width;
    const auto start = [&](const KernelPlan& plan, auto kernel, auto... out) {
      launch(ops, plan, kernel, attention_batch(sequences, args.heads, plan),
             attention_dropout(args.dropout), args.d_qkv.as<T>(), args.d_out.as<T>(), out...,
             args.log_sum_exp.as<float>(), args.qkv.as<T>());
    };
    if (attention_backward_is_short(shape)) {
      start(attention_backward_short_plan(shape), attention_backward_short_kernel<T, kWidth>,
            args.out.as<T>());
    } else {
      launch(ops, attention_delta_plan(shape), attention_delta_kernel<T, kWidth>,
             args.d_qkv.as<T>(), args.d_out.as<T>(), args.out.as<T>(), shape.tokens, shape.heads);
      start(attention_backward_keys_plan(shape), attention_backward_keys_mma_kernel<T, kWidth>);
      start(attention_backward_queries_plan(shape),
            attention_backward_queries_mma_kernel<T, kWidth>);
    }
  });
}

}  // namespace maxim

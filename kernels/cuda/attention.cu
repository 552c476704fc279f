// Multi-head attention over packed sequences (Vaswani et al. 2017) in the manner of FlashAttention
// (Dao et al. 2022): the launchers, and the f32 version with plain FMA.
// attention_forward_mma.cu and attention_backward_mma.cu have the 16-bit one.
//
//   forward    s = q k^T / sqrt(d), p = softmax(s) over the keys, out = (m p) v, m = dropout's 0 or
//              1 / (1 - probability); saved: log_sum_exp of each row of s
//   backward   p = exp(s - log_sum_exp) again; delta = sum over columns of d_out * out
//              d_v = (m p)^T d_out        d_s = p (m (d_out v^T) - delta) / sqrt(d)
//              d_q = d_s k                d_k = d_s^T q
//
// One block is one tile of 64 rows of one head of one sequence, and owns what it writes. Forward
// and d_q: a warp owns 8 query rows, and the keys come 32 at a time, one a lane; the softmax is
// online. d_k and d_v: a warp owns 8 keys, and the query rows come 32 at a time, one a lane. So no
// result is shared, sums run over ascending rows, and scores are computed 7 times the d products a
// score instead of 5. delta waits in d_q until d_q is written, so that no memory is taken.
//
// FLOPs a head of r rows and n keys: 4 r n d forward, 14 r n d backward. A row without keys gets
// NaN.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/reduce.cuh"

namespace maxim {
namespace {

constexpr int kOwned = kAttentionOwned;
constexpr int kLanes = kAttentionLanes;
constexpr int kGroups = kLanes / kDropoutGroup;
constexpr int kThreads = kAttentionWarps * kWarp;
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

// acc += w x: w [8 own][32 lanes], x [32 lanes][d]. A lane holds columns lane, lane + 32.
template <int Width>
__device__ __forceinline__ void add_product(float (&acc)[kOwned][Width / kWarp], const float* w,
                                            const float* x) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int j = 0; j < kLanes; j += 4) {
    float columns[4][Width / kWarp];
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int c = 0; c < Width / kWarp; ++c)
        columns[k][c] = x[(j + k) * kRow<Width> + c * kWarp + lane];
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

template <int Width>
__global__ void __launch_bounds__(kThreads, 2)
    attention_forward_kernel(AttentionBatch batch, AttentionDropout dropout, float* out,
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

template <int Width>
__global__ void __launch_bounds__(kThreads, 2)
    attention_backward_queries_kernel(AttentionBatch batch, AttentionDropout dropout, float* d_qkv,
                                      const float* d_out, const float* log_sum_exp,
                                      const float* qkv) {
  const AttentionTile tile(batch, kAttentionTile);
  if (tile.size <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t hidden = int64_t{batch.heads} * Width, stride = 3 * hidden;
  const float* q = qkv + tile.start * stride + tile.head * Width;
  const float *k = q + hidden, *v = k + hidden;
  float* const q_tile = shared_memory<float>();
  float* const d_out_tile = q_tile + kAttentionTile * kRow<Width>;
  float* const k_tile = d_out_tile + kAttentionTile * kRow<Width>;
  float* const v_tile = k_tile + kLanes * kRow<Width>;
  float* const d_s_tile = v_tile + kLanes * kRow<Width> + warp * kOwned * kLanes;
  const float* const q_own = q_tile + warp * kOwned * kRow<Width>;
  const float* const d_out_own = d_out_tile + warp * kOwned * kRow<Width>;
  const int first = tile.first + warp * kOwned, own = tile.rows - first;
  const int drawn = min(first + KeptKeys::drawn_row(), tile.rows - 1);
  const int position = batch.positions[tile.start + drawn];
  const float scale = 1 / sqrtf(static_cast<float>(Width));
  float* const d_q = d_qkv + (tile.start + first) * stride + tile.head * Width;

  load_rows<Width>(q_tile, kAttentionTile, q + tile.first * stride, stride, tile.size);
  load_rows<Width>(d_out_tile, kAttentionTile,
                   d_out + (tile.start + tile.first) * hidden + tile.head * Width, hidden,
                   tile.size);
  float acc[kOwned][Width / kWarp] = {}, log_sum[kOwned], delta[kOwned];
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    const int64_t row = tile.start + min(first + i, tile.rows - 1);
    log_sum[i] = log_sum_exp[row * batch.heads + tile.head];
    delta[i] = i < own ? d_q[i * stride] : 0.0f;
  }
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
      const float p = key + lane < tile.keys ? expf(s[i] * scale - log_sum[i]) : 0.0f;
      const float masked = kept[i] ? d_p[i] * dropout.scale : 0.0f;
      d_s_tile[i * kLanes + lane] = p * (masked - delta[i]);
    }
    __syncwarp();
    add_product<Width>(acc, d_s_tile, k_tile);
  }
  store_rows<Width>(d_q, stride, own, acc, scale);
}

template <int Width>
__global__ void __launch_bounds__(kThreads, 2)
    attention_backward_keys_kernel(AttentionBatch batch, AttentionDropout dropout, float* d_qkv,
                                   const float* d_out, const float* log_sum_exp, const float* qkv) {
  const AttentionTile tile(batch, kAttentionTile);
  if (tile.size <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t hidden = int64_t{batch.heads} * Width, stride = 3 * hidden;
  const int64_t start = tile.start * stride + tile.head * Width;
  const float* const q = qkv + start;
  const float* const d_o = d_out + tile.start * hidden + tile.head * Width;
  float* const k_tile = shared_memory<float>();
  float* const v_tile = k_tile + kAttentionTile * kRow<Width>;
  float* const q_tile = v_tile + kAttentionTile * kRow<Width>;
  float* const d_out_tile = q_tile + kLanes * kRow<Width>;
  float* const p_tile = d_out_tile + kLanes * kRow<Width> + warp * kOwned * kLanes;
  const float* const k_own = k_tile + warp * kOwned * kRow<Width>;
  const float* const v_own = v_tile + warp * kOwned * kRow<Width>;
  const int first = tile.first + warp * kOwned, own = tile.keys - first;
  const float scale = 1 / sqrtf(static_cast<float>(Width));

  load_rows<Width>(k_tile, kAttentionTile, q + hidden + tile.first * stride, stride, tile.size);
  load_rows<Width>(v_tile, kAttentionTile, q + 2 * hidden + tile.first * stride, stride, tile.size);
  float d_k[kOwned][Width / kWarp] = {}, d_v[kOwned][Width / kWarp] = {};
  // A tile beyond the keys only writes its zeros.
  for (int row = 0; row < (tile.first < tile.keys ? tile.rows : 0); row += kLanes) {
    __syncthreads();
    load_rows<Width>(q_tile, kLanes, q + row * stride, stride, tile.rows - row);
    load_rows<Width>(d_out_tile, kLanes, d_o + row * hidden, hidden, tile.rows - row);
    __syncthreads();
    if (own <= 0) continue;
    float s[kOwned], d_p[kOwned];
    dots<Width>(s, k_own, q_tile + lane * kRow<Width>);
    dots<Width>(d_p, v_own, d_out_tile + lane * kRow<Width>);
    const bool real = row + lane < tile.rows;
    const int lane_row = real ? row + lane : 0;
    const float log_sum = log_sum_exp[(tile.start + lane_row) * batch.heads + tile.head];
    const float delta = d_qkv[start + lane_row * stride];
    // The warp's keys are one group of dropout: a lane draws for its own row.
    const uint32_t kept =
        dropout.threshold == 0
            ? ~0u
            : kept_elements(
                  tile.bits(dropout, batch.positions[tile.start + lane_row], first / kDropoutGroup),
                  dropout.threshold);
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const float p = real && i < own ? expf(s[i] * scale - log_sum) : 0.0f;
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
  float* const d_k_own = d_qkv + start + hidden + first * stride;
  store_rows<Width>(d_k_own, stride, tile.rows - first, d_k, scale);
  store_rows<Width>(d_k_own + hidden, stride, tile.rows - first, d_v, 1);
}
static_assert(kOwned == kDropoutGroup, "a warp's keys are one group of dropout");

// Calls f with the head's width as a constant.
template <class F>
void for_width(int64_t width, F&& f) {
  if (width == 32)
    f(std::integral_constant<int, 32>{});
  else
    f(std::integral_constant<int, 64>{});
}

void check_shapes(const Tensor& out, const Tensor& log_sum_exp, const Tensor& qkv, int64_t heads,
                  const Sequences& sequences) {
  const int64_t tokens = sequences.tokens(), hidden = out.cols();
  MAXIM_CHECK(out.rows() == tokens && qkv.rows() == tokens && qkv.cols() == 3 * hidden &&
                  log_sum_exp.size() == tokens * heads,
              "{} tokens, {} heads: out [{}, {}], qkv [{}, {}], log_sum_exp of {}", tokens, heads,
              out.rows(), hidden, qkv.rows(), qkv.cols(), log_sum_exp.size());
  MAXIM_CHECK(heads > 0 && (hidden == 32 * heads || hidden == 64 * heads),
              "{} columns in {} heads: a head has 32 or 64", hidden, heads);
  MAXIM_CHECK(out.dtype() == qkv.dtype(), "out is {}, qkv {}", name_of(out.dtype()),
              name_of(qkv.dtype()));
  for (const Tensor& x : {out, qkv})  // rows are multiples of 64 bytes, and read 16 at a time
    MAXIM_CHECK(reinterpret_cast<uintptr_t>(x.data()) % 16 == 0,
                "an address that 16 does not divide");
}

}  // namespace

AttentionShape attention_shape(const CudaOps& ops, const Tensor& qkv, int64_t heads,
                               const Sequences& sequences) {
  return {.type = qkv.dtype(),
          .tokens = sequences.tokens(),
          .sequences = sequences.count(),
          .longest = sequences.longest,
          .heads = heads,
          .width = qkv.cols() / (3 * heads),
          .shared_bytes = ops.shared_bytes()};
}

AttentionBatch attention_batch(const Sequences& sequences, int64_t heads, const KernelPlan& plan) {
  const int64_t count = sequences.count() * heads;
  return {.offsets = sequences.offsets.as<int32_t>(),
          .key_counts = sequences.key_counts.as<int32_t>(),
          .positions = sequences.positions.as<int32_t>(),
          .random_rows = sequences.random_rows.as<uint32_t>(),
          .random_columns = sequences.random_columns.as<uint32_t>(),
          .heads = static_cast<int>(heads),
          .tiles = count == 0 ? 0 : static_cast<int>(plan.grid[0] / count)};
}

AttentionDropout attention_dropout(const Dropout& dropout) {
  return {.seed = dropout.seed,
          .step = dropout.step,
          .site = dropout.site,
          .threshold = dropout.active() ? dropout_threshold(dropout.probability) : 0,
          .scale = dropout.active() ? dropout_scale(dropout.probability) : 1};
}

void attention_delta(CudaOps& ops, const AttentionBackward& args, const AttentionShape& shape) {
  for_dtype(shape.type, [&](auto element) {
    using T = decltype(element);
    for_width(shape.width, [&](auto width) {
      launch(ops, attention_delta_plan(shape), attention_delta_kernel<T, width>, args.d_qkv.as<T>(),
             args.d_out.as<T>(), args.out.as<T>(), shape.tokens, shape.heads);
    });
  });
}

void CudaOps::attention_forward(const AttentionForward& args, const Sequences& sequences) {
  check_shapes(args.out, args.log_sum_exp, args.qkv, args.heads, sequences);
  if (args.qkv.dtype() != DType::f32) return attention_forward_mma(*this, args, sequences);
  const AttentionShape shape = attention_shape(*this, args.qkv, args.heads, sequences);
  const KernelPlan plan = attention_forward_plan(shape);
  for_width(shape.width, [&](auto width) {
    launch(*this, plan, attention_forward_kernel<width>,
           attention_batch(sequences, args.heads, plan), attention_dropout(args.dropout),
           args.out.as<float>(), args.log_sum_exp.as<float>(), args.qkv.as<float>());
  });
}

void CudaOps::attention_backward(const AttentionBackward& args, const Sequences& sequences) {
  check_shapes(args.out, args.log_sum_exp, args.qkv, args.heads, sequences);
  check_shapes(args.d_out, args.log_sum_exp, args.d_qkv, args.heads, sequences);
  if (args.qkv.dtype() != DType::f32) return attention_backward_mma(*this, args, sequences);
  const AttentionShape shape = attention_shape(*this, args.qkv, args.heads, sequences);
  const KernelPlan keys = attention_backward_keys_plan(shape);
  const KernelPlan queries = attention_backward_queries_plan(shape);
  attention_delta(*this, args, shape);
  for_width(shape.width, [&](auto width) {
    const auto start = [&](const KernelPlan& plan, auto kernel) {
      launch(*this, plan, kernel, attention_batch(sequences, args.heads, plan),
             attention_dropout(args.dropout), args.d_qkv.as<float>(), args.d_out.as<float>(),
             args.log_sum_exp.as<float>(), args.qkv.as<float>());
    };
    start(keys, attention_backward_keys_kernel<width>);
    start(queries, attention_backward_queries_kernel<width>);
  });
}

}  // namespace maxim

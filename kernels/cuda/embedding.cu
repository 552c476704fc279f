// BERT's embeddings: s = word[id] + position[p] + type[0], y = dropout(LayerNorm(s)), and the way
// back. norm_row.cuh has the formulas of a row.
//
// Forward: a warp a token (a block, for a long row); the two table rows of a token are read, s and
// y written; saved: s, mean, rstd. Backward: rows first (d_y becomes d_s in place; d_gamma, d_beta
// and d_type by blocks of rows in order), then the tables, without atomics:
//
//   words:     token ids are sorted, each with its row. The sort is stable, so a word's rows are a
//              run in ascending order. A warp sums a piece of the sorted rows; a run within it goes
//              to its table row at once, a run across pieces in parts, which the warp where it
//              starts adds in order. So a frequent word is not one warp's burden, and every element
//              of a table has one owner.
//   positions: row p of sequence s is offsets[s] + p. A block owns a position; warp w adds
//   sequences
//              w, w + 8, …; then the warps in order.
//
// Ids and positions are on the device and are not checked by the host: a token beyond a table gives
// a row of NaN and adds to no table.
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/norm_row.cuh"

namespace maxim {
namespace {

template <class T>
struct Forward {
  T *y, *s;
  float *mean, *rstd;
  const int32_t *token_ids, *positions;
  const float *word, *position, *type, *gamma, *beta;
  int64_t rows, words, most_positions;
  int columns;
  float epsilon;
  HiddenDropout dropout;
};

// y = dropout(LayerNorm(s)) of one pack of a row.
template <class T, int N>
__device__ __forceinline__ void store_output(const Forward<T>& o, int64_t at, int i, int column,
                                             const float* s, const Moments& m,
                                             const DropoutMask& mask) {
  float y[N];
  norm_pack<N>(y, s, m, o.gamma + column, o.beta + column);
#pragma unroll
  for (int e = 0; e < N; ++e) y[e] = mask.apply(y[e], i * N + e);
  store_pack<N>(o.y + at + column, y);
}

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) embedding_forward_kernel(const Forward<T> o) {
  const RowLanes<N> row(o.columns);
  const int64_t t = row.row(), at = t * o.columns;
  if (t >= o.rows) return;
  const int64_t id = o.token_ids[t], place = o.positions[t];
  const bool inside = 0 <= id && id < o.words && 0 <= place && place < o.most_positions;
  const float* word = o.word + (inside ? id : 0) * o.columns;
  const float* position = o.position + (inside ? place : 0) * o.columns;
  const float fault = inside ? 0.0f : __int_as_float(0x7FFFFFFF);  // NaN
  const DropoutMask mask = o.dropout.mask(row, t);
  float s[kLaneColumns<N>], sum = 0;
  row.for_each_pack([&](int i, int column) {
    float w[N], p[N], k[N];
    load_pack<N>(w, word + column);
    load_pack<N>(p, position + column);
    load_pack<N>(k, o.type + column);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      s[i * N + e] = to_float(from_float<T>(w[e] + k[e] + p[e] + fault));
      sum += s[i * N + e];
    }
  });
  const Moments m = moments_of(row, s, sum, o.epsilon, shared_memory<float>());
  row.for_each_pack([&](int i, int column) {
    store_pack<N>(o.s + at + column, s + i * N);
    store_output<T, N>(o, at, i, column, s + i * N, m, mask);
  });
  if (row.is_first()) {
    o.mean[t] = m.mean;
    o.rstd[t] = m.rstd;
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) embedding_apply_kernel(const Forward<T> o) {
  const RowLanes<N> row(o.columns);
  const int64_t t = row.row(), at = t * o.columns;
  if (t >= o.rows) return;
  const DropoutMask mask = o.dropout.mask(row, t);
  const Moments m = {o.mean[t], o.rstd[t]};
  row.for_each_pack([&](int i, int column) {
    float s[N];
    load_pack<N>(s, o.s + at + column);
    store_output<T, N>(o, at, i, column, s, m, mask);
  });
}

template <class T>
struct Backward {
  T* d;           // d_y; d_s when done
  NormSums sums;  // d_gamma, d_beta, d_type
  const T* s;
  const float *mean, *rstd, *gamma;
  int64_t rows, rows_per_block;
  int columns;
  HiddenDropout dropout;
};

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads, kGradientBlocks<T, N>)
    embedding_backward_kernel(const Backward<T> o) {
  auto* scratch = shared_memory<float>();
  const RowLanes<N> row(o.columns);
  const ThreadSums<N> sums(row, scratch + 2 * kWarp);
  const int64_t begin = blockIdx.x * o.rows_per_block;
  const int64_t end = begin + o.rows_per_block < o.rows ? begin + o.rows_per_block : o.rows;
  for (int64_t t = begin + row.group; t < end; t += row.groups) {
    const int64_t at = t * o.columns;
    float d[kLaneColumns<N>];
    norm_row_backward(d, sums, row, o.d + at, o.s + at, o.gamma, {o.mean[t], o.rstd[t]},
                      o.dropout.mask(row, t), scratch);
    row.for_each_pack([&](int i, int column) {
      store_pack<N>(o.d + at + column, d + i * N);
      sums.add(2, i, d + i * N);
    });
  }
  sums.add_to(o.sums);
}

// What is sorted: each token's id and row. An id beyond the table becomes `words`, behind all
// others.
__global__ void __launch_bounds__(kRowThreads)
    token_keys_kernel(uint32_t* keys, int32_t* rows, const int32_t* token_ids, int64_t tokens,
                      uint32_t words) {
  const int64_t t = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (t >= tokens) return;
  const auto id = static_cast<uint32_t>(token_ids[t]);
  keys[t] = id < words ? id : words;
  rows[t] = static_cast<int32_t>(t);
}

struct Runs {
  float* table;          // [words, columns] +=
  float *heads, *tails;  // [pieces, columns]: of a run from the piece before; of one that goes on
  const uint32_t* keys;  // [tokens], sorted
  const int32_t* rows;   // [tokens]
  int64_t tokens, columns, pieces, tokens_per_piece;
  uint32_t words;
};

// Adds N columns to a table row.
template <int N>
__device__ __forceinline__ void add_pack(float* to, const float* sums) {
  float values[N];
  load_pack<N>(values, to);
#pragma unroll
  for (int e = 0; e < N; ++e) values[e] += sums[e];
  store_pack<N>(to, values);
}

// A warp a piece of the sorted tokens and 32 packs of columns. Lane l looks after token l of 32;
// four rows of `in` are on their way at a time.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) sum_runs_kernel(const Runs o, const T* in) {
  constexpr int kFlying = 4;
  const int lane = threadIdx.x % kWarp;
  const int64_t piece = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (piece >= o.pieces) return;
  const int64_t column = (int64_t{blockIdx.y} * kWarp + lane) * N;
  const bool works = column < o.columns;
  const int64_t begin = piece * o.tokens_per_piece;
  const int64_t end = begin + o.tokens_per_piece < o.tokens ? begin + o.tokens_per_piece : o.tokens;
  bool from_before = begin > 0 && o.keys[begin - 1] == o.keys[begin];  // the run at hand
  const bool goes_on = end < o.tokens && o.keys[end] == o.keys[end - 1];
  float sums[N] = {};
  for (int64_t base = begin; base < end; base += kWarp) {
    const int64_t mine = base + lane;
    const int count = static_cast<int>(end - base < kWarp ? end - base : kWarp);
    const uint32_t key = lane < count ? o.keys[mine] : o.words;
    const int32_t row = lane < count ? o.rows[mine] : 0;
    const bool last = lane < count && (mine + 1 == end || o.keys[mine + 1] != key);
    const unsigned last_of_run = __ballot_sync(kAllLanes, last);
    for (int first = 0; first < count; first += kFlying) {
      float d[kFlying][N];
#pragma unroll
      for (int k = 0; k < kFlying; ++k) {
        const int64_t from = __shfl_sync(kAllLanes, row, first + k);
        if (works && first + k < count) load_pack<N>(d[k], in + from * o.columns + column);
      }
#pragma unroll
      for (int k = 0; k < kFlying; ++k) {
        const int i = first + k;
        const uint32_t word = __shfl_sync(kAllLanes, key, i);
        if (i >= count) break;
        if (!works) continue;
#pragma unroll
        for (int e = 0; e < N; ++e) sums[e] += d[k][e];
        if ((last_of_run >> i & 1) == 0) continue;
        if (from_before)
          store_pack<N>(o.heads + piece * o.columns + column, sums);
        else if (goes_on && base + i + 1 == end)
          store_pack<N>(o.tails + piece * o.columns + column, sums);
        else if (word < o.words)
          add_pack<N>(o.table + word * o.columns + column, sums);
        from_before = false;
#pragma unroll
        for (int e = 0; e < N; ++e) sums[e] = 0;
      }
    }
  }
}

// The runs that cross pieces: the warp of the piece where a run starts adds its parts.
template <int N>
__global__ void __launch_bounds__(kRowThreads) join_runs_kernel(const Runs o) {
  const int lane = threadIdx.x % kWarp;
  const int64_t piece = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (piece + 1 >= o.pieces) return;  // a run across pieces starts before the last one
  const int64_t begin = piece * o.tokens_per_piece, next = begin + o.tokens_per_piece;
  const uint32_t key = o.keys[next - 1];
  if (o.keys[next] != key || key >= o.words) return;  // no run goes on from here
  if (begin > 0 && o.keys[begin - 1] == key) return;  // it started earlier
  int64_t parts = 0;                                  // pieces after this one that begin with it
  for (bool more = true; more;) {
    const int64_t p = piece + 1 + parts + lane;
    const unsigned same =
        __ballot_sync(kAllLanes, p < o.pieces && o.keys[p * o.tokens_per_piece] == key);
    parts += __popc(same);
    more = same == kAllLanes;
  }
  const int64_t column = (int64_t{blockIdx.y} * kWarp + lane) * N;
  if (column >= o.columns) return;
  float sums[N];
  load_pack<N>(sums, o.tails + piece * o.columns + column);
#pragma unroll 8
  for (int64_t p = piece + 1; p <= piece + parts; ++p) {
    float part[N];
    load_pack<N>(part, o.heads + p * o.columns + column);
#pragma unroll
    for (int e = 0; e < N; ++e) sums[e] += part[e];
  }
  add_pack<N>(o.table + key * o.columns + column, sums);
}

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    sum_positions_kernel(float* table, const T* d, const int32_t* offsets, int64_t sequences,
                         int64_t columns) {
  const int warp = threadIdx.x / kWarp;
  const int64_t column = (int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp) * N;
  const int64_t position = blockIdx.y;
  float sums[N] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t s = warp; s < sequences; s += kRowWarps) {
      const int64_t row = offsets[s] + position;
      if (row >= offsets[s + 1]) continue;
      float values[N];
      load_pack<N>(values, d + row * columns + column);
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += values[e];
    }
  }
  for_each_tile_sum<N>(sums, shared_memory<float>(), [&](int64_t c, float sum) {
    if (c < columns) table[position * columns + c] += sum;
  });
}

void check_activations(const Tensor& y, const Tensor& s, const Tensor& mean, const Tensor& rstd,
                       const Tensor& gamma, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = y.cols();
  check_rows(y, rows, h, "y");
  check_rows(s, rows, h, "s");
  check_size(mean, rows, "mean");
  check_size(rstd, rows, "rstd");
  check_size(gamma, h, "gamma");
}

void check_tables(const Tensor& word, const Tensor& position, const Tensor& type, int64_t h,
                  const Sequences& sequences) {
  check_rows(word, word.rows(), h, "the word table");
  check_rows(position, position.rows(), h, "the position table");
  check_rows(type, type.rows(), h, "the type table");
  MAXIM_CHECK(type.rows() > 0, "a type table without rows");
  MAXIM_CHECK(sequences.longest <= position.rows(), "a sequence of {} rows, {} positions",
              sequences.longest, position.rows());
}

template <class T>
Forward<T> forward_operands(const EmbeddingForward& args, const Sequences& sequences) {
  return {.y = args.y.as<T>(),
          .s = args.s.as<T>(),
          .mean = args.mean.as<float>(),
          .rstd = args.rstd.as<float>(),
          .token_ids = sequences.token_ids.as<int32_t>(),
          .positions = sequences.positions.as<int32_t>(),
          .word = args.word.as<float>(),
          .position = args.position.as<float>(),
          .type = args.type.as<float>(),
          .gamma = args.gamma.as<float>(),
          .beta = args.beta.as<float>(),
          .rows = sequences.tokens(),
          .words = args.word.rows(),
          .most_positions = args.position.rows(),
          .columns = static_cast<int>(args.y.cols()),
          .epsilon = args.epsilon,
          .dropout = HiddenDropout(args.dropout, sequences)};
}

// Scratch memory of the words' gradient, in one block: offsets of its parts, each a multiple of
// 256.
struct WordScratch {
  int64_t bytes = 0;
  int64_t unsorted_keys, unsorted_rows, keys, rows, heads, tails, sort;

  WordScratch(int64_t tokens, int64_t columns, int64_t sort_bytes)
      : unsorted_keys(part(tokens * 4)),
        unsorted_rows(part(tokens * 4)),
        keys(part(tokens * 4)),
        rows(part(tokens * 4)),
        heads(part(kMostPieces * columns * 4)),
        tails(part(kMostPieces * columns * 4)),
        sort(part(sort_bytes)) {}

 private:
  int64_t part(int64_t size) {
    const int64_t at = bytes;
    bytes += (size + 255) / 256 * 256;
    return at;
  }
};

// Scratch memory is taken for so many tokens at once (7 MB), so that a longer batch asks for no
// more; for the next power of two, should there be more tokens than these.
constexpr uint64_t kSortedTokens = uint64_t{1} << 18;

// d_word: sorts the tokens and sums their runs.
template <class T, int N>
void add_word_gradients(CudaOps& ops, const Tensor& d_word, const Tensor& d,
                        const Tensor& token_ids) {
  const int64_t tokens = d.rows(), columns = d.cols();
  const auto words = static_cast<uint32_t>(d_word.rows());
  size_t sort_bytes = 0;
  const auto sort = [&](void* memory, int64_t count, const uint32_t* keys_in, uint32_t* keys,
                        const int32_t* rows_in, int32_t* rows) {
    cuda_check(cub::DeviceRadixSort::SortPairs(memory, sort_bytes, keys_in, keys, rows_in, rows,
                                               static_cast<int>(count), 0, std::bit_width(words),
                                               ops.stream()),
               "sorting the tokens");
  };
  const auto capacity =
      static_cast<int64_t>(std::bit_ceil(std::max(static_cast<uint64_t>(tokens), kSortedTokens)));
  sort(nullptr, capacity, nullptr, nullptr, nullptr, nullptr);  // only sets sort_bytes
  const WordScratch at(capacity, columns, static_cast<int64_t>(sort_bytes));
  auto* memory = static_cast<char*>(ops.scratch().bytes(at.bytes, "sorting tokens"));
  auto* unsorted_keys = reinterpret_cast<uint32_t*>(memory + at.unsorted_keys);
  auto* unsorted_rows = reinterpret_cast<int32_t*>(memory + at.unsorted_rows);
  auto* keys = reinterpret_cast<uint32_t*>(memory + at.keys);
  auto* rows = reinterpret_cast<int32_t*>(memory + at.rows);
  launch(ops, token_keys_plan(tokens), token_keys_kernel, unsorted_keys, unsorted_rows,
         token_ids.as<int32_t>(), tokens, words);
  sort(memory + at.sort, tokens, unsorted_keys, keys, unsorted_rows, rows);
  ops.count({.name = "sort_tokens", .bytes = static_cast<double>(16 * tokens)});
  const RowBlocks pieces = token_pieces(tokens);
  const Runs runs{.table = d_word.as<float>(),
                  .heads = reinterpret_cast<float*>(memory + at.heads),
                  .tails = reinterpret_cast<float*>(memory + at.tails),
                  .keys = keys,
                  .rows = rows,
                  .tokens = tokens,
                  .columns = columns,
                  .pieces = pieces.count(),
                  .tokens_per_piece = pieces.rows_per_block,
                  .words = words};
  launch(ops, sum_runs_plan(tokens, columns, sizeof(T), N), sum_runs_kernel<T, N>, runs, d.as<T>());
  launch(ops, join_runs_plan(tokens, columns, N), join_runs_kernel<N>, runs);
}

}  // namespace

void CudaOps::embedding_forward(const EmbeddingForward& args, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = args.y.cols();
  check_activations(args.y, args.s, args.mean, args.rstd, args.gamma, sequences);
  check_size(args.beta, h, "beta");
  check_tables(args.word, args.position, args.type, h, sequences);
  for_packs(args.y.dtype(), h,
            {args.y.data(), args.s.data(), args.word.data(), args.position.data(), args.type.data(),
             args.gamma.data(), args.beta.data()},
            [&](auto zero, auto width) {
              using T = decltype(zero);
              constexpr int N = decltype(width)::value;
              launch(*this, embedding_forward_plan(rows, h, sizeof(T), N),
                     embedding_forward_kernel<T, N>, forward_operands<T>(args, sequences));
            });
}

void CudaOps::embedding_apply(const EmbeddingForward& args, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = args.y.cols();
  check_activations(args.y, args.s, args.mean, args.rstd, args.gamma, sequences);
  check_size(args.beta, h, "beta");
  for_packs(args.y.dtype(), h, {args.y.data(), args.s.data(), args.gamma.data(), args.beta.data()},
            [&](auto zero, auto width) {
              using T = decltype(zero);
              constexpr int N = decltype(width)::value;
              launch(*this, embedding_apply_plan(rows, h, sizeof(T), N),
                     embedding_apply_kernel<T, N>, forward_operands<T>(args, sequences));
            });
}

void CudaOps::embedding_backward(const EmbeddingBackward& args, const Sequences& sequences) {
  const int64_t rows = sequences.tokens(), h = args.d_y.cols();
  check_activations(args.d_y, args.s, args.mean, args.rstd, args.gamma, sequences);
  check_tables(args.d_word, args.d_position, args.d_type, h, sequences);
  check_size(args.d_gamma, h, "d_gamma");
  check_size(args.d_beta, h, "d_beta");
  if (rows == 0) return;
  const RowBlocks blocks = norm_row_blocks(rows);
  for_packs(args.d_y.dtype(), h,
            {args.d_y.data(), args.s.data(), args.gamma.data(), args.d_word.data(),
             args.d_position.data()},
            [&](auto zero, auto width) {
              using T = decltype(zero);
              constexpr int N = decltype(width)::value;
              launch(*this, embedding_backward_plan(rows, h, sizeof(T), N),
                     embedding_backward_kernel<T, N>,
                     Backward<T>{.d = args.d_y.as<T>(),
                                 .sums = norm_sums(*this, args.d_gamma, args.d_beta, args.d_type),
                                 .s = args.s.as<T>(),
                                 .mean = args.mean.as<float>(),
                                 .rstd = args.rstd.as<float>(),
                                 .gamma = args.gamma.as<float>(),
                                 .rows = rows,
                                 .rows_per_block = blocks.rows_per_block,
                                 .columns = static_cast<int>(h),
                                 .dropout = HiddenDropout(args.dropout, sequences)});
              add_word_gradients<T, N>(*this, args.d_word, args.d_y, sequences.token_ids);
              launch(*this, sum_positions_plan(rows, sequences.longest, h, sizeof(T), N),
                     sum_positions_kernel<T, N>, args.d_position.as<float>(), args.d_y.as<T>(),
                     sequences.offsets.as<int32_t>(), sequences.count(), h);
            });
}

}  // namespace maxim

// Gradients of MaxSim (maxsim.cu) by its winners.
//
//   queries    d_q_s = sum over j of g[i, j] d_winner(s, j), j ascending
//   documents  d_d_t = sum over the (s, j) that t won of g[i, j] q_s, s ascending
//
// Both are sums of gathered rows: 2 D FLOPs and D numbers read for each (query token, document), so
// L2's bandwidth is the limit. A warp owns a row of the result, lanes along the columns; it reads
// eight rows ahead and adds them in their order, so no bit depends on timing.
//
// Queries: a warp owns a query token. Documents: a block owns a slab of at most 256 tokens of a
// document and takes 4,096 query tokens at a time. It reads their winners (a column, whose sectors
// the neighbouring documents' blocks find in L2) and sorts the query tokens by winner with a stable
// counting sort in shared memory: each warp counts a stretch of query tokens, the counts are summed
// over (token, warp), and each warp places its stretch in order, lanes with equal winners by rank
// (__match_any_sync). Then a warp owns a token, and adds to what earlier rounds left. Documents
// longer than a slab have several blocks, so there is no limit on their length but the winners'.
#include "kernels/cuda/maxsim.cuh"

namespace maxim {
namespace {

constexpr int kWarps = kGatherThreads / kWarp;
constexpr int kAhead = 8;       // rows in flight: 8 x 128 columns x 4 bytes a warp
constexpr int kSortBlocks = 2;  // on a multiprocessor; with three, ptxas spills for sm_90

// sum += weight(n) vectors[row(n)][column ...) for lanes n = 0 .. 31 of the warp, ascending, where
// row(n) >= 0. All lanes call it; those whose columns lie outside of the width add nothing.
template <class T, int V>
__device__ __forceinline__ void add_rows(float (&sum)[V], const T* vectors, int row, float weight,
                                         int count, int width, int column) {
  for (int n = 0; n < count; n += kAhead) {
    Pack<T, V> x[kAhead];
    float w[kAhead];
    bool used[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int r = __shfl_sync(kAllLanes, row, n + a);
      w[a] = __shfl_sync(kAllLanes, weight, n + a);
      used[a] = r >= 0 && column < width;
      if (used[a]) x[a] = Pack<T, V>::load(vectors + static_cast<int64_t>(r) * width + column);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (!used[a]) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] = fmaf(w[a], x[a][v], sum[v]);
    }
  }
}

struct MaxSimBackward {
  float* out;  // d_queries or d_documents
  const float* d_scores;
  const uint16_t* winners;
  Texts queries, documents;
  int32_t width;
  int32_t slab;  // document tokens of a block; for the documents' gradients
};

template <class T, int V>
__global__ void __launch_bounds__(kGatherThreads)
    maxsim_backward_queries_kernel(const MaxSimBackward args, const T* documents) {
  const int lane = threadIdx.x % kWarp;
  const int64_t s = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (s >= args.queries.offsets[args.queries.count]) return;
  const int count = args.documents.count;
  // The last query that begins at or before s.
  const int i = lower_bound(args.queries.offsets, args.queries.count, static_cast<int>(s) + 1) - 1;
  const float* d_scores = args.d_scores + static_cast<int64_t>(i) * count;
  const uint16_t* winners = args.winners + s * count;

  for (int k0 = 0; k0 < args.width; k0 += kWarp * V) {
    const int column = k0 + lane * V;
    float sum[V] = {};
    for (int j0 = 0; j0 < count; j0 += kWarp) {
      const int j = j0 + lane;
      int row = -1;  // where the document is empty
      float weight = 0;
      if (j < count && winners[j] != kNoWinner) {
        row = args.documents.offsets[j] + winners[j];
        weight = d_scores[j];
      }
      add_rows(sum, documents, row, weight, min(kWarp, count - j0), args.width, column);
    }
    Pack<float, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.set(v, sum[v]);
    if (column < args.width) out.store(args.out + s * args.width + column);
  }
}

// Shared memory of the documents' kernel: kSortBytes.
struct Sort {
  float weight[kSortRows];
  int begin[kMostSlab + 1];  // where the query tokens of each token begin in `rows`
  int warp_total[kWarps];
  uint16_t winner[kSortRows];          // within the slab, or kNoWinner
  uint16_t rows[kSortRows];            // query tokens of the round, sorted by winner
  uint16_t counts[kWarps][kMostSlab];  // of each warp's stretch; then where the next one goes
};
static_assert(sizeof(Sort) == kSortBytes);

// Winners within [first, first + count) of document j, and the d_scores that go with them, of query
// tokens [s0, s0 + rows). A thread reads neighbours, so that it seeks their query once.
__device__ __forceinline__ void read_winners(Sort& sort, const MaxSimBackward& args, int j,
                                             int first, int count, int s0, int rows) {
  constexpr int kEach = kSortRows / kGatherThreads;
  const int64_t document_count = args.documents.count;
  const int begin = threadIdx.x * kEach, end = min(begin + kEach, rows);
  int winner[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    winner[n] = begin + n < end ? args.winners[(s0 + begin + n) * document_count + j] : kNoWinner;
  int i = lower_bound(args.queries.offsets, args.queries.count, s0 + begin + 1) - 1;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int within = winner[n] - first;
    const bool mine = winner[n] != kNoWinner && within >= 0 && within < count;
    sort.winner[begin + n] = static_cast<uint16_t>(mine ? within : kNoWinner);
    if (begin + n >= end) continue;
    while (args.queries.offsets[i + 1] <= s0 + begin + n) ++i;
    if (mine) sort.weight[begin + n] = args.d_scores[i * document_count + j];
  }
}

// Sorts the query tokens whose winner is in the slab by (winner, query token) into sort.rows. A
// warp keeps to its own stretch of query tokens, so that equal winners stay in order.
__device__ __forceinline__ void sort_winners(Sort& sort, int tokens) {
  constexpr int kStretch = kSortRows / kWarps;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint16_t* const counts = sort.counts[warp];
  // Calls visit(query token, winner, lanes with the same winner, how many of them are below).
  const auto for_each_winner = [&](auto visit) {
    for (int n = warp * kStretch + lane; n < (warp + 1) * kStretch; n += kWarp) {
      const int winner = sort.winner[n];
      const unsigned equals = __match_any_sync(kAllLanes, winner);
      const int rank = __popc(equals & ((1u << lane) - 1));
      visit(n, winner, __popc(equals), rank);
      __syncwarp();
    }
  };

  for (int t = lane; t < tokens; t += kWarp) counts[t] = 0;
  __syncthreads();  // the winners are there
  for_each_winner([&](int, int winner, int equals, int rank) {
    if (rank == 0 && winner != kNoWinner) counts[winner] += equals;
  });
  __syncthreads();

  // Exclusive sums over (token, warp): a thread for each token.
  const int t = threadIdx.x;
  int total = 0;
  for (int w = 0; w < kWarps && t < tokens; ++w) total += sort.counts[w][t];
  int sum = total;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int lower = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += lower;
  }
  if (lane == kWarp - 1) sort.warp_total[warp] = sum;
  __syncthreads();
  int place = sum - total;
  for (int w = 0; w < warp; ++w) place += sort.warp_total[w];
  if (t < tokens) {
    sort.begin[t] = place;
    for (int w = 0; w < kWarps; ++w) {
      const int count = sort.counts[w][t];
      sort.counts[w][t] = static_cast<uint16_t>(place);
      place += count;
    }
    if (t == tokens - 1) sort.begin[tokens] = place;
  }
  __syncthreads();

  for_each_winner([&](int n, int winner, int equals, int rank) {
    if (winner != kNoWinner) sort.rows[counts[winner] + rank] = static_cast<uint16_t>(n);
    __syncwarp();  // all have read the count
    if (rank == 0 && winner != kNoWinner) counts[winner] += equals;
  });
  __syncthreads();
}

template <class T, int V>
__global__ void __launch_bounds__(kGatherThreads, kSortBlocks)
    maxsim_backward_documents_kernel(const MaxSimBackward args, const T* queries) {
  Sort& sort = *shared_memory<Sort>();
  const int lane = threadIdx.x % kWarp, j = blockIdx.x, first = blockIdx.y * args.slab;
  const int document = args.documents.offsets[j];
  const int tokens = min(args.slab, args.documents.offsets[j + 1] - document - first);
  if (tokens <= 0) return;
  const int query_tokens = args.queries.offsets[args.queries.count];
  float* const slab = args.out + static_cast<int64_t>(document + first) * args.width;

  int s0 = 0;
  do {  // once where there are no queries, for the zeros
    read_winners(sort, args, j, first, tokens, s0, min(kSortRows, query_tokens - s0));
    sort_winners(sort, tokens);
    for (int t = threadIdx.x / kWarp; t < tokens; t += kWarps) {
      const int begin = sort.begin[t], end = sort.begin[t + 1];
      if (s0 > 0 && begin == end) continue;
      for (int k0 = 0; k0 < args.width; k0 += kWarp * V) {
        const int column = k0 + lane * V;
        float* const out = slab + static_cast<int64_t>(t) * args.width + column;
        Pack<float, V> sum{};
        if (s0 > 0 && column < args.width) sum = Pack<float, V>::load(out);
        for (int n0 = begin; n0 < end; n0 += kWarp) {
          int row = -1;
          float weight = 0;
          if (n0 + lane < end) {
            row = sort.rows[n0 + lane];
            weight = sort.weight[row];
            row += s0;
          }
          add_rows(sum.x, queries, row, weight, min(kWarp, end - n0), args.width, column);
        }
        if (column < args.width) sum.store(out);
      }
    }
    s0 += kSortRows;
    __syncthreads();  // the next round's winners take this one's place
  } while (s0 < query_tokens);
}

MaxSimBackward backward_args(const Tensor& out, const Tensor& d_scores, const Tensor& winners,
                             const TokenVectors& queries, const TokenVectors& documents,
                             const MaxSimShape& shape) {
  return {.out = out.as<float>(),
          .d_scores = d_scores.as<float>(),
          .winners = winners.as<uint16_t>(),
          .queries = texts_of(queries),
          .documents = texts_of(documents),
          .width = static_cast<int32_t>(shape.width),
          .slab = 0};
}

}  // namespace

void CudaOps::maxsim_backward_queries(const Tensor& d_queries, const Tensor& d_scores,
                                      const Tensor& winners, const TokenVectors& queries,
                                      const TokenVectors& documents) {
  const MaxSimShape shape = maxsim_shape(d_scores, winners, queries, documents);
  MAXIM_CHECK(d_queries.size() == queries.vectors.size(), "d_queries [{}, {}] for [{}, {}]",
              d_queries.rows(), d_queries.cols(), queries.vectors.rows(), queries.vectors.cols());
  const MaxSimBackward args =
      backward_args(d_queries, d_scores, winners, queries, documents, shape);
  for_dtype(queries.vectors.dtype(), [&](auto element) {
    using T = decltype(element);
    launch(*this, maxsim_backward_queries_plan(shape),
           shape.width % 4 == 0 ? maxsim_backward_queries_kernel<T, 4>
                                : maxsim_backward_queries_kernel<T, 1>,
           args, documents.vectors.as<T>());
  });
}

void CudaOps::maxsim_backward_documents(const Tensor& d_documents, const Tensor& d_scores,
                                        const Tensor& winners, const TokenVectors& queries,
                                        const TokenVectors& documents) {
  const MaxSimShape shape = maxsim_shape(d_scores, winners, queries, documents);
  MAXIM_CHECK(d_documents.size() == documents.vectors.size(), "d_documents [{}, {}] for [{}, {}]",
              d_documents.rows(), d_documents.cols(), documents.vectors.rows(),
              documents.vectors.cols());
  const MaxSimDocumentsPlan plan = maxsim_backward_documents_plan(shape, multiprocessors());
  MaxSimBackward args = backward_args(d_documents, d_scores, winners, queries, documents, shape);
  args.slab = static_cast<int32_t>(plan.slab);
  for_dtype(queries.vectors.dtype(), [&](auto element) {
    using T = decltype(element);
    launch(*this, plan.kernel,
           shape.width % 4 == 0 ? maxsim_backward_documents_kernel<T, 4>
                                : maxsim_backward_documents_kernel<T, 1>,
           args, queries.vectors.as<T>());
  });
}

}  // namespace maxim

// MaxSim (Khattab and Zaharia, SIGIR 2020) of every query with every document of a batch.
//
//   forward    scores[i, j] = sum over tokens s of query i of max over tokens t of document j of
//              q_s . d_t, and winners[s, j] = the lowest such t
//
// A block owns the queries that begin in a window of query tokens and a run of documents
// (maxsim.h), so it alone writes their scores and winners. It holds a tile of query tokens and
// streams the documents past it; similarities stay in registers and are folded into the maxima at
// once. Blocks of the same documents are neighbours and read them from L2. Sums over depth ascend;
// a score sums the query's maxima in an order that depends on their places in the query only, for
// queries of one tile. 2 Tq Td D FLOPs; least bytes: the vectors, 4 a score, 2 a winner.
//
// Here: any width, any element type, plain multiply-adds. A tile is 128 query tokens x 64 document
// tokens, 8 x 8 a thread: 16 reads of 128 bits for 256 multiply-adds. 16-bit vectors of
// up to 128 dimensions take the tensor cores instead (maxsim_tensor.cu).
#include "kernels/cuda/maxsim.cuh"

namespace maxim {
namespace {

constexpr int kSide = 8;                        // of a thread's square of similarities
constexpr int kColumns = kPlainTokens / kSide;  // threads along the document tokens
constexpr int kLines = kPlainRows / kSide;      // threads along the query tokens
static_assert(kColumns * kLines == kPlainThreads && kColumns == 8);

// Numbers [k0, k0 + kPlainDepth) of `rows` vectors as a tile of `tile_rows` in shared memory; 0
// where there are none. V numbers move at a time.
template <class T, int V>
__device__ __forceinline__ void stage(float* tile, int tile_rows, const T* vectors, int rows,
                                      int width, int k0) {
  constexpr int kGroups = kPlainDepth / V;
#pragma unroll 4
  for (int i = threadIdx.x; i < tile_rows * kGroups; i += kPlainThreads) {
    const int row = i / kGroups, k = i % kGroups * V;
    Pack<float, V> values{};
    if (row < rows && k0 + k < width) {
      const auto x = Pack<T, V>::load(vectors + static_cast<int64_t>(row) * width + k0 + k);
#pragma unroll
      for (int v = 0; v < V; ++v) values.set(v, x[v]);
    }
    values.store(tile + row * kPlainStride + k);
  }
}

// dot[i][n] += q[line + 16 i] . d[column + 8 n] over the depth of the tiles.
__device__ __forceinline__ void multiply(float (&dot)[kSide][kSide], const float* q_tile,
                                         const float* d_tile, int line, int column) {
  using Quad = Pack<float, 4>;
#pragma unroll 1
  for (int k = 0; k < kPlainDepth; k += 4) {
    Quad q[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i)
      q[i] = Quad::load(q_tile + (line + kLines * i) * kPlainStride + k);
#pragma unroll
    for (int n = 0; n < kSide; ++n) {
      const Quad d = Quad::load(d_tile + (column + kColumns * n) * kPlainStride + k);
#pragma unroll
      for (int i = 0; i < kSide; ++i)
#pragma unroll
        for (int v = 0; v < 4; ++v) dot[i][n] = fmaf(q[i].x[v], d.x[v], dot[i][n]);
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kPlainThreads, kPlainBlocks)
    maxsim_forward_kernel(const MaxSimForward args, const T* queries, const T* documents) {
  float* const q_tile = shared_memory<float>();
  float* const d_tile = q_tile + kPlainRows * kPlainStride;
  float* const maxima_of_rows = d_tile + kPlainTokens * kPlainStride;
  const int column = threadIdx.x % kColumns, line = threadIdx.x / kColumns;
  const Share share = share_of_block(args);
  if (share.first_query == share.last_query) return;
  const int64_t width = args.width;

  int row = share.first_row;
  do {  // once for empty queries too
    const int rows = min(kPlainRows, share.last_row - row);
    for (int j = share.first_document; j < share.last_document; ++j) {
      const int begin = args.documents.offsets[j];
      const int tokens = args.documents.offsets[j + 1] - begin;
      // Two rows of maxima in turn, so that no warp need wait for the sums of the last document.
      float* const best = maxima_of_rows + j % 2 * kPlainRows;
      Maximum maxima[kSide];
#pragma unroll
      for (int i = 0; i < kSide; ++i) maxima[i] = no_maximum(tokens);

      for (int first = 0; first < tokens; first += kPlainTokens) {
        float dot[kSide][kSide] = {};
        for (int k0 = 0; k0 < args.width; k0 += kPlainDepth) {
          __syncthreads();  // the last tiles have been read
          stage<T, V>(q_tile, kPlainRows, queries + row * width, rows, args.width, k0);
          stage<T, V>(d_tile, kPlainTokens, documents + (begin + first) * width, tokens - first,
                      args.width, k0);
          __syncthreads();
          multiply(dot, q_tile, d_tile, line, column);
        }
#pragma unroll
        for (int n = 0; n < kSide; ++n) {
          const int token = first + column + kColumns * n;
          if (token >= tokens) continue;
#pragma unroll
          for (int i = 0; i < kSide; ++i)
            if (beats(dot[i][n], maxima[i].value)) maxima[i] = {dot[i][n], token};
        }
      }

      Maximum mine{};  // of row line + kLines * column
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
        Maximum of_row = maxima[i];
#pragma unroll
        for (int offset = kColumns / 2; offset > 0; offset /= 2)
          of_row = merge_lanes(of_row, offset);
        if (column == i) mine = of_row;
      }
      const int r = line + kLines * column;
      if (r < rows) {
        best[r] = mine.value;
        if (args.winners != nullptr)
          args.winners[static_cast<int64_t>(row + r) * args.documents.count + j] =
              static_cast<uint16_t>(mine.token);
      }
      __syncthreads();
      add_scores(args, share, row, rows, best, j);
    }
    __syncthreads();  // the maxima have been read
    row += kPlainRows;
  } while (row < share.last_row);
}

void check_texts(const TokenVectors& texts, const char* which) {
  MAXIM_CHECK(texts.offsets.rows() >= 1, "{}: offsets are empty", which);
  MAXIM_CHECK(texts.longest < kNoWinner, "{}: a text of {} tokens; winners have 16 bits", which,
              texts.longest);
  MAXIM_CHECK(std::max(texts.vectors.rows(), texts.count()) <= kMostTokens,
              "{}: {} texts of {} tokens; offsets have 32 bits", which, texts.count(),
              texts.vectors.rows());
}

}  // namespace

MaxSimShape maxsim_shape(const Tensor& scores, const Tensor& winners, const TokenVectors& queries,
                         const TokenVectors& documents) {
  check_texts(queries, "queries");
  check_texts(documents, "documents");
  const Tensor &q = queries.vectors, &d = documents.vectors;
  MAXIM_CHECK(q.empty() || d.empty() || q.cols() == d.cols(),
              "queries of width {}, documents of width {}", q.cols(), d.cols());
  MAXIM_CHECK(q.dtype() == d.dtype(), "queries are {}, documents {}", name_of(q.dtype()),
              name_of(d.dtype()));
  MAXIM_CHECK(scores.size() == queries.count() * documents.count(), "scores [{}, {}] for {} x {}",
              scores.rows(), scores.cols(), queries.count(), documents.count());
  MAXIM_CHECK(winners.absent() || winners.size() == q.rows() * documents.count(),
              "winners [{}, {}] for {} query tokens x {} documents", winners.rows(), winners.cols(),
              q.rows(), documents.count());
  return {.queries = queries.count(),
          .query_tokens = q.rows(),
          .longest_query = queries.longest,
          .documents = documents.count(),
          .document_tokens = d.rows(),
          .longest_document = documents.longest,
          .width = q.empty() ? d.cols() : q.cols(),
          .vector_bytes = size_of(q.dtype()),
          .winners = !winners.absent()};
}

void CudaOps::maxsim_forward(const Tensor& scores, const Tensor& winners,
                             const TokenVectors& queries, const TokenVectors& documents) {
  const MaxSimShape shape = maxsim_shape(scores, winners, queries, documents);
  const MaxSimForwardPlan plan = maxsim_forward_plan(shape, multiprocessors());
  const MaxSimForward args = {
      .scores = scores.as<float>(),
      .winners = winners.absent() ? nullptr : winners.as<uint16_t>(),
      .queries = texts_of(queries),
      .documents = texts_of(documents),
      .width = static_cast<int32_t>(shape.width),
      .window = static_cast<int32_t>(plan.window),
      .documents_per_block = static_cast<int32_t>(plan.documents_per_block)};
  if (plan.tensor_cores)
    return maxsim_forward_tensor(*this, plan.kernel, args, queries.vectors, documents.vectors);
  for_dtype(queries.vectors.dtype(), [&](auto element) {
    using T = decltype(element);
    const auto start = [&](auto* kernel) {
      launch(*this, plan.kernel, kernel, args, queries.vectors.as<T>(), documents.vectors.as<T>());
    };
    shape.width % 4 == 0 ? start(maxsim_forward_kernel<T, 4>) : start(maxsim_forward_kernel<T, 1>);
  });
}

}  // namespace maxim

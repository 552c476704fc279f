// MaxSim (Khattab and Zaharia, SIGIR 2020) of every query with every document of a batch.
//
//   forward    scores[i, j] = sum over tokens s of query i of max over tokens t of document j of
//              q_s . d_t, and winners[s, j] = the lowest such t
//   backward   d_q_s = sum over j of g[i, j] d_winner(s, j)
//              d_d_t = sum over the (s, j) that t won of g[i, j] q_s, s ascending
//
// Forward: queries are packed into panels (panel.h), query tokens along the vector lanes. A tile of
// up to kTileRows document tokens times a panel stays in registers and is folded into the running
// maxima at once, so no similarity ever reaches memory. Document tokens are read where they lie. A
// group of about kGroupTokens query tokens (whole queries, so that a score is summed in one place)
// meets a chunk of documents that fits L2; (group, chunk) is the unit of work and alone writes its
// scores and winners. 2 Tq Td D FLOPs; the maxima cost 5 operations a similarity, 4 % at D = 128.
//
// Backward: a thread owns rows of d_queries and sums documents in ascending order; a thread owns
// documents, sorts the column of winners by counting, and sums each token's queries in ascending
// order. No bit depends on the number of threads.
//
// A similarity that is not a number stays the maximum from then on, so its score is NaN and the
// loss shows it; max(x, NaN) = x would hide it.
#include <omp.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/panel.h"

namespace maxim {
namespace {

constexpr int64_t kGroupTokens = 128;       // four panels of 16 KB at D = 128
constexpr int64_t kChunkBytes = 256 << 10;  // of document vectors: a quarter of a core's L2
constexpr int64_t kTasksPerThread = 8;      // at least, where there is that much work
// Room for a group, taken at the first call so that no longer query asks for more: 0.5 MB a thread.
constexpr int64_t kLeastScratchTokens = 1024;
// Documents whose gradients a thread gathers before it goes to the next query token: their vectors
// are half a core's L2.
constexpr int64_t kGatherBytes = 512 << 10;
constexpr uint16_t kNoWinner = 65535;

// Texts [first, last).
struct Run {
  int64_t first, last;
};

// Cuts texts into runs of whole texts, at most `limit` tokens each unless one text alone is longer.
void cut_runs(std::vector<Run>& runs, const int32_t* offsets, int64_t count, int64_t limit) {
  runs.clear();
  for (int64_t first = 0, last; first < count; first = last) {
    last = first + 1;
    while (last < count && offsets[last + 1] - offsets[first] <= limit) ++last;
    runs.push_back({first, last});
  }
}

// Maxima of a panel over the document tokens seen so far, and which token each is.
struct Maxima {
  Floats value[2];
  Ints token[2];
};

template <int M>
void fold_tile(Maxima& maxima, const float* panel, const float* tokens, int64_t width,
               int32_t first) {
  Floats dot[M][2] = {};
  for (int64_t k = 0; k < width; ++k) {
    const Floats q0 = load(panel + k * kPanel), q1 = load(panel + k * kPanel + kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const float d = tokens[m * width + k];
      dot[m][0] += q0 * d;
      dot[m][1] += q1 * d;
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Ints wins = (dot[m][v] > maxima.value[v]) | (dot[m][v] != dot[m][v]);
      maxima.value[v] = wins ? dot[m][v] : maxima.value[v];
      maxima.token[v] = wins ? Ints{} + (first + m) : maxima.token[v];
    }
}

using FoldTile = void (*)(Maxima&, const float*, const float*, int64_t, int32_t);
template <int... M>
constexpr std::array<FoldTile, sizeof...(M)> fold_tiles(std::integer_sequence<int, M...>) {
  return {fold_tile<M + 1>...};
}
constexpr auto kFoldTile = fold_tiles(std::make_integer_sequence<int, kTileRows>());

// The maxima of a panel over a document. A document without tokens scores 0.
Maxima maxima_of(const float* panel, const float* document, int64_t tokens, int64_t width) {
  Maxima maxima;
  for (int v = 0; v < kPanelVectors; ++v) {
    maxima.value[v] = broadcast(tokens > 0 ? -std::numeric_limits<float>::infinity() : 0.0f);
    maxima.token[v] = Ints{} + (tokens > 0 ? 0 : kNoWinner);
  }
  for_each_tile(tokens, [&](int64_t begin, int64_t end) {
    kFoldTile[end - begin - 1](maxima, panel, document + begin * width, width,
                               static_cast<int32_t>(begin));
  });
  return maxima;
}

struct Forward {
  float* scores;
  uint16_t* winners;  // or nullptr
  const float* queries;
  const float* documents;
  const int32_t* query_offsets;
  const int32_t* document_offsets;
  int64_t document_count, width;
};

// One thread's scratch: a group of queries in panels, and its maxima over one document.
struct PackedGroup {
  float* panels;
  float* best;
  int64_t group = -1;
};

void pack_group(PackedGroup& packed, const Forward& f, const Run& group) {
  const int64_t begin = f.query_offsets[group.first], tokens = f.query_offsets[group.last] - begin;
  for (int64_t s = 0; s < tokens; s += kPanel)
    pack_panel(packed.panels + s * f.width, kPanel, f.queries + (begin + s) * f.width, f.width,
               std::min<int64_t>(kPanel, tokens - s), f.width);
}

// Scores and winners of one group of queries with one chunk of documents.
void score_documents(const PackedGroup& packed, const Forward& task, const Run& group,
                     const Run& chunk) {
  const int64_t begin = task.query_offsets[group.first];
  const int64_t tokens = task.query_offsets[group.last] - begin;
  float* const best = packed.best;
  for (int64_t j = chunk.first; j < chunk.last; ++j) {
    const int64_t length = task.document_offsets[j + 1] - task.document_offsets[j];
    const float* document = task.documents + task.document_offsets[j] * task.width;
    for (int64_t s = 0; s < tokens; s += kPanel) {
      const float* panel = packed.panels + s * task.width;
      const Maxima maxima = maxima_of(panel, document, length, task.width);
      store(best + s, maxima.value[0]);
      store(best + s + kLanes, maxima.value[1]);
      if (task.winners == nullptr) continue;
      int32_t token[kPanel];
      std::memcpy(token, maxima.token, sizeof token);
      uint16_t* winners = task.winners + (begin + s) * task.document_count + j;
      for (int64_t i = 0; i < std::min<int64_t>(kPanel, tokens - s); ++i)
        winners[i * task.document_count] = static_cast<uint16_t>(token[i]);
    }
    for (int64_t i = group.first; i < group.last; ++i) {
      double sum = 0;
      for (int64_t s = task.query_offsets[i]; s < task.query_offsets[i + 1]; ++s)
        sum += best[s - begin];
      task.scores[i * task.document_count + j] = static_cast<float>(sum);
    }
  }
}

// out[0, N * kLanes) += sum over i of weights[i] * vectors[rows[i]], i ascending; the sums stay in
// registers.
template <int N>
void add_rows(float* out, const float* vectors, const int32_t* rows, const float* weights,
              int64_t count, int64_t width) {
  Floats sum[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) sum[v] = load(out + v * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    const float* x = vectors + rows[i] * width;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[v] += load(x + v * kLanes) * weights[i];
  }
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) store(out + v * kLanes, sum[v]);
}

// The same for all `width` columns: 8 vectors at a time, then what is left.
void add_rows(float* out, const float* vectors, const int32_t* rows, const float* weights,
              int64_t count, int64_t width) {
  int64_t k = 0;
  for (; k + 8 * kLanes <= width; k += 8 * kLanes)
    add_rows<8>(out + k, vectors + k, rows, weights, count, width);
  for (; k + 2 * kLanes <= width; k += 2 * kLanes)
    add_rows<2>(out + k, vectors + k, rows, weights, count, width);
  for (; k < width; ++k)
    for (int64_t i = 0; i < count; ++i) out[k] += weights[i] * vectors[rows[i] * width + k];
}

// One document's winners sorted by (document token, query token): the query tokens that token t
// won are rows[end[t - 1] .. end[t]), and `weights` their d_scores.
struct WinnerSort {
  std::vector<uint16_t> winner;
  std::vector<int32_t> end, rows;
  std::vector<float> weights;

  // `winners` and `d_scores` are the document's columns, `stride` elements a row.
  void sort(const uint16_t* winners, const float* d_scores, const int32_t* query_offsets,
            int64_t query_count, int64_t stride, int64_t tokens) {
    const int64_t query_tokens = query_offsets[query_count];
    winner.resize(query_tokens);
    rows.resize(query_tokens);
    weights.resize(query_tokens);
    end.assign(tokens + 1, 0);
    for (int64_t s = 0; s < query_tokens; ++s) {
      winner[s] = winners[s * stride];
      if (winner[s] < tokens) ++end[winner[s] + 1];
    }
    for (int64_t t = 0; t < tokens; ++t) end[t + 1] += end[t];
    // Here end[t] is where t begins; placing t's query tokens moves it to where they end.
    for (int64_t i = 0; i < query_count; ++i)
      for (int64_t s = query_offsets[i]; s < query_offsets[i + 1]; ++s) {
        if (winner[s] >= tokens) continue;
        const int32_t place = end[winner[s]]++;
        rows[place] = static_cast<int32_t>(s);
        weights[place] = d_scores[i * stride];
      }
  }
};

void check_token_vectors(const TokenVectors& texts, const char* which) {
  MAXIM_CHECK(texts.offsets.rows() >= 1, "{}: offsets are empty", which);
  MAXIM_CHECK(texts.longest < kNoWinner, "{}: a text of {} tokens; winners have 16 bits", which,
              texts.longest);
  const int32_t* offsets = texts.offsets.as<int32_t>();
  MAXIM_CHECK(offsets[0] == 0 && offsets[texts.count()] == texts.vectors.rows(),
              "{}: offsets [{}, {}] of {} vectors", which, offsets[0], offsets[texts.count()],
              texts.vectors.rows());
}

void check_shapes(const Tensor& scores, const Tensor& winners, const TokenVectors& queries,
                  const TokenVectors& documents) {
  check_token_vectors(queries, "queries");
  check_token_vectors(documents, "documents");
  MAXIM_CHECK(queries.vectors.empty() || documents.vectors.empty() ||
                  queries.vectors.cols() == documents.vectors.cols(),
              "queries of width {}, documents of width {}", queries.vectors.cols(),
              documents.vectors.cols());
  MAXIM_CHECK(scores.size() == queries.count() * documents.count(), "scores [{}, {}] for {} x {}",
              scores.rows(), scores.cols(), queries.count(), documents.count());
  MAXIM_CHECK(winners.absent() || winners.size() == queries.vectors.rows() * documents.count(),
              "winners [{}, {}] for {} query tokens x {} documents", winners.rows(), winners.cols(),
              queries.vectors.rows(), documents.count());
}

}  // namespace

void CpuOps::maxsim_forward(const Tensor& scores, const Tensor& winners,
                            const TokenVectors& queries, const TokenVectors& documents) {
  check_shapes(scores, winners, queries, documents);
  const int64_t width = queries.vectors.cols();
  const Forward task = {.scores = scores.as<float>(),
                        .winners = winners.absent() ? nullptr : winners.as<uint16_t>(),
                        .queries = queries.vectors.as<float>(),
                        .documents = documents.vectors.as<float>(),
                        .query_offsets = queries.offsets.as<int32_t>(),
                        .document_offsets = documents.offsets.as<int32_t>(),
                        .document_count = documents.count(),
                        .width = width};
  static thread_local std::vector<Run> groups, chunks;
  cut_runs(groups, task.query_offsets, queries.count(), kGroupTokens);
  const int64_t group_count = static_cast<int64_t>(groups.size());
  const int64_t threads = omp_get_max_threads();
  const int64_t for_threads = documents.vectors.rows() * group_count / (kTasksPerThread * threads);
  const int64_t for_cache = kChunkBytes / std::max<int64_t>(1, width * sizeof(float));
  cut_runs(chunks, task.document_offsets, documents.count(), std::min(for_threads, for_cache));
  const int64_t chunk_count = static_cast<int64_t>(chunks.size());

  const int64_t most_tokens = std::max(kLeastScratchTokens, queries.longest) + kPanel;
  const int64_t floats = most_tokens * (width + 1);
  float* const scratch = panels_.floats(threads * floats, "MaxSim");
  const Run* const group = groups.data();
  const Run* const chunk = chunks.data();
#pragma omp parallel
  {
    float* const mine = scratch + omp_get_thread_num() * floats;
    PackedGroup packed = {.panels = mine, .best = mine + most_tokens * width};
    // Neighbouring tasks share the documents, which stay in L2. Packing a group for every chunk
    // costs 1.5 %; reading the documents from L3 for every group cost 15 %.
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < group_count * chunk_count; ++i) {
      const int64_t g = i % group_count;
      if (packed.group != g) pack_group(packed, task, group[g]);
      packed.group = g;
      score_documents(packed, task, group[g], chunk[i / group_count]);
    }
  }
}

void CpuOps::maxsim_backward_queries(const Tensor& d_queries, const Tensor& d_scores,
                                     const Tensor& winners, const TokenVectors& queries,
                                     const TokenVectors& documents) {
  check_shapes(d_scores, winners, queries, documents);
  MAXIM_CHECK(d_queries.size() == queries.vectors.size(), "d_queries [{}, {}] for [{}, {}]",
              d_queries.rows(), d_queries.cols(), queries.vectors.rows(), queries.vectors.cols());
  const int64_t width = queries.vectors.cols(), count = documents.count();
  const int64_t query_count = queries.count();
  const int32_t* query_offsets = queries.offsets.as<int32_t>();
  const int32_t* offsets = documents.offsets.as<int32_t>();
  const float* vectors = documents.vectors.as<float>();
  const float* gradients = d_scores.as<float>();
  const uint16_t* winner = winners.as<uint16_t>();
  float* out = d_queries.as<float>();

  static thread_local std::vector<Run> chunks;
  cut_runs(chunks, offsets, count, kGatherBytes / std::max<int64_t>(1, width * sizeof(float)));
  const std::vector<Run>& shared_chunks = chunks;
  device_.zero(d_queries);
#pragma omp parallel
  {
    static thread_local std::vector<int32_t> rows;
    static thread_local std::vector<float> weights;
    rows.resize(count);
    weights.resize(count);
    for (const Run& chunk : shared_chunks) {
#pragma omp for schedule(static) nowait
      for (int64_t i = 0; i < query_count; ++i)
        for (int64_t s = query_offsets[i]; s < query_offsets[i + 1]; ++s) {
          int64_t n = 0;
          for (int64_t j = chunk.first; j < chunk.last; ++j) {
            const int32_t t = winner[s * count + j];
            if (t >= offsets[j + 1] - offsets[j]) continue;  // the document is empty
            rows[n] = offsets[j] + t;
            weights[n++] = gradients[i * count + j];
          }
          add_rows(out + s * width, vectors, rows.data(), weights.data(), n, width);
        }
    }
  }
}

void CpuOps::maxsim_backward_documents(const Tensor& d_documents, const Tensor& d_scores,
                                       const Tensor& winners, const TokenVectors& queries,
                                       const TokenVectors& documents) {
  check_shapes(d_scores, winners, queries, documents);
  MAXIM_CHECK(d_documents.size() == documents.vectors.size(), "d_documents [{}, {}] for [{}, {}]",
              d_documents.rows(), d_documents.cols(), documents.vectors.rows(),
              documents.vectors.cols());
  const int64_t width = documents.vectors.cols(), count = documents.count();
  const int64_t query_count = queries.count();
  const int32_t* query_offsets = queries.offsets.as<int32_t>();
  const int32_t* offsets = documents.offsets.as<int32_t>();
  const float* vectors = queries.vectors.as<float>();
  const float* gradients = d_scores.as<float>();
  const uint16_t* winner = winners.as<uint16_t>();
  float* out = d_documents.as<float>();

  device_.zero(d_documents);
#pragma omp parallel
  {
    static thread_local WinnerSort sorted;
#pragma omp for schedule(static)
    for (int64_t j = 0; j < count; ++j) {
      const int64_t tokens = offsets[j + 1] - offsets[j];
      sorted.sort(winner + j, gradients + j, query_offsets, query_count, count, tokens);
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t first = t == 0 ? 0 : sorted.end[t - 1];
        add_rows(out + (offsets[j] + t) * width, vectors, sorted.rows.data() + first,
                 sorted.weights.data() + first, sorted.end[t] - first, width);
      }
    }
  }
}

}  // namespace maxim

// What the forward kernels of MaxSim share: which queries and documents a block owns, maxima with
// their tokens, and the way from maxima to scores. And the launchers' checks.
#pragma once

#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/maxsim.h"
#include "kernels/cuda/reduce.cuh"

namespace maxim {

constexpr int kNoWinner = 65535;

// Offsets of packed texts and how many there are.
struct Texts {
  const int32_t* offsets;
  int32_t count;
};

// The index of the first of `offsets[0 .. count)` that is at least `value`; `count` if none is.
__device__ __forceinline__ int lower_bound(const int32_t* offsets, int count, int value) {
  int first = 0;
  while (first < count) {
    const int middle = (first + count) / 2;
    if (offsets[middle] < value)
      first = middle + 1;
    else
      count = middle;
  }
  return first;
}

struct MaxSimForward {
  float* scores;
  uint16_t* winners;  // or nullptr
  Texts queries, documents;
  int32_t width;
  int32_t window;  // query tokens
  int32_t documents_per_block;
};

// What a block owns: the queries that begin in its window, their tokens, and a run of documents.
// The last window takes the empty queries behind the last token too.
struct Share {
  int first_query, last_query;
  int first_row, last_row;
  int first_document, last_document;
};

__device__ __forceinline__ Share share_of_block(const MaxSimForward& args) {
  const Texts& queries = args.queries;
  const int window = static_cast<int>(blockIdx.x) * args.window;
  Share share;
  share.first_query = lower_bound(queries.offsets, queries.count, window);
  share.last_query = blockIdx.x + 1 == gridDim.x
                         ? queries.count
                         : lower_bound(queries.offsets, queries.count, window + args.window);
  share.first_row = queries.offsets[share.first_query];
  share.last_row = queries.offsets[share.last_query];
  share.first_document = static_cast<int>(blockIdx.y) * args.documents_per_block;
  share.last_document = min(share.first_document + args.documents_per_block, args.documents.count);
  return share;
}

// The best similarity so far and its token.
struct Maximum {
  float value;
  int token;
};

// Before the first token of a document. -infinity never wins against it, so that a document whose
// similarities are all -infinity has winner 0, as it should; an empty one scores 0.
__device__ __forceinline__ Maximum no_maximum(int tokens) {
  return tokens > 0 ? Maximum{-INFINITY, 0} : Maximum{0, kNoWinner};
}

// Whether `value` is greater than `best`. A similarity that is not a number is greater than all
// that are: it stays the maximum, so its score is NaN and the loss shows it.
__device__ __forceinline__ bool beats(float value, float best) {
  return value > best || (value != value && best == best);
}

// The greater of two maxima over different tokens, the lower token of equal ones.
__device__ __forceinline__ Maximum merge(const Maximum& a, const Maximum& b) {
  const bool take_b = beats(b.value, a.value) || (!beats(a.value, b.value) && b.token < a.token);
  return take_b ? b : a;
}

// The merger with the maximum of the lane whose number differs by `offset`, the same in both.
__device__ __forceinline__ Maximum merge_lanes(const Maximum& mine, int offset) {
  const float value = __shfl_xor_sync(kAllLanes, mine.value, offset);
  const int token = __shfl_xor_sync(kAllLanes, mine.token, offset);
  return merge(mine, {value, token});
}

// Adds the maxima of query tokens [row, row + rows) over document j, which are in shared memory, to
// the scores of the share's queries: a warp sums a query, lanes interleaved. A query that began in
// an earlier tile goes on from its score so far.
__device__ __forceinline__ void add_scores(const MaxSimForward& args, const Share& share, int row,
                                           int rows, const float* best, int j) {
  const int lane = threadIdx.x % kWarp;
  for (int i = share.first_query + threadIdx.x / kWarp; i < share.last_query;
       i += blockDim.x / kWarp) {
    const int query_begin = args.queries.offsets[i], query_end = args.queries.offsets[i + 1];
    const int begin = max(query_begin, row), end = min(query_end, row + rows);
    if (begin >= end && query_begin < query_end) continue;
    float sum = 0;
    for (int s = begin + lane; s < end; s += kWarp) sum += best[s - row];
    sum = warp_sum(sum);
    if (lane > 0) continue;
    float& score = args.scores[static_cast<int64_t>(i) * args.documents.count + j];
    score = query_begin >= row ? sum : score + sum;
  }
}

// Checks what the three operations have in common: shapes, types and lengths. `scores`: or
// d_scores.
MaxSimShape maxsim_shape(const Tensor& scores, const Tensor& winners, const TokenVectors& queries,
                         const TokenVectors& documents);

// maxsim_tensor.cu: vectors of one 16-bit type, for a plan with tensor_cores.
void maxsim_forward_tensor(CudaOps& ops, const KernelPlan& plan, const MaxSimForward& args,
                           const Tensor& queries, const Tensor& documents);

inline Texts texts_of(const TokenVectors& vectors) {
  return {vectors.offsets.as<int32_t>(), static_cast<int32_t>(vectors.count())};
}

}  // namespace maxim

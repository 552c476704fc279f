// Launches of the MaxSim kernels (maxsim.cu, maxsim_tensor.cu, maxsim_backward.cu) as pure
// functions of the shape, for the launchers, the tests and the benchmarks. No CUDA header needed.
#pragma once

#include <algorithm>

#include "kernels/cuda/plan.h"

namespace maxim {

// Query tokens, and document tokens, that kernels count with 32 bits, tiles and all.
constexpr int64_t kMostTokens = (int64_t{1} << 31) - (int64_t{1} << 16);

struct MaxSimShape {
  int64_t queries = 0, query_tokens = 0, longest_query = 0;
  int64_t documents = 0, document_tokens = 0, longest_document = 0;
  int64_t width = 0;
  int64_t vector_bytes = 4;  // of one number of a vector
  bool winners = true;       // wanted by the forward pass

  double vectors() const {  // bytes of all token vectors and offsets
    return static_cast<double>((query_tokens + document_tokens) * width * vector_bytes +
                               (queries + documents + 2) * 4);
  }
  double pairs() const {
    return static_cast<double>(query_tokens) * static_cast<double>(documents);
  }
  double scores() const { return static_cast<double>(queries) * static_cast<double>(documents); }
};

// ---- forward

// A block takes the queries that begin in its window of query tokens and a run of documents.
struct MaxSimForwardPlan {
  KernelPlan kernel;
  bool tensor_cores = false;
  int64_t window = 0;  // query tokens
  int64_t documents_per_block = 0;
};

// Tile of the kernel with plain multiply-adds: query tokens x document tokens x depth.
constexpr int kPlainRows = 128, kPlainTokens = 64, kPlainDepth = 32;
// A row of a tile in shared memory: 16 bytes more than its numbers, so that eight rows read as
// 128-bit words touch all 32 banks once.
constexpr int kPlainStride = kPlainDepth + 4;
constexpr int kPlainThreads = 128, kPlainBlocks = 3;  // blocks on a multiprocessor: 168 registers

// Tile of the kernel on tensor cores: four warps with 64 query tokens each, whose vectors take half
// of the 255 registers that two blocks on a multiprocessor leave; 64 document tokens, three deep.
constexpr int kTensorWidth = 128, kTensorWarpRows = 64, kTensorRows = 256, kTensorTokens = 64;
constexpr int kTensorThreads = 128, kTensorBlocks = 2, kTensorStages = 3;
constexpr int kTensorStageBytes = kTensorTokens * kTensorWidth * 2;

// A block's documents: at least so many tokens, so that loading its queries costs little, where
// that leaves blocks enough; in at most so many waves of blocks.
constexpr int64_t kLeastDocumentTokens = 2048, kMostWaves = 4;

inline MaxSimForwardPlan maxsim_forward_plan(const MaxSimShape& shape, int multiprocessors) {
  MaxSimForwardPlan plan;
  plan.tensor_cores =
      shape.vector_bytes == 2 && shape.width <= kTensorWidth && shape.width % 8 == 0;
  const int64_t rows = plan.tensor_cores ? kTensorRows : kPlainRows;
  const int64_t tiles_bytes = plan.tensor_cores ? kTensorStages * kTensorStageBytes
                                                : (kPlainRows + kPlainTokens) * kPlainStride * 4;
  // Whole queries fill a tile where all are of one length. Otherwise a window that the longest
  // query cannot overrun, but half a tile at least: a block takes its queries in several tiles if
  // it must.
  const int64_t longest = std::clamp<int64_t>(shape.longest_query, 1, rows);
  const bool uniform = shape.query_tokens == shape.queries * shape.longest_query;
  plan.window = uniform ? rows / longest * longest : std::max(rows / 2, rows - longest + 1);
  const int64_t windows = std::max<int64_t>(1, ceil_div(shape.query_tokens, plan.window));
  const int64_t wave = (plan.tensor_cores ? kTensorBlocks : kPlainBlocks) * multiprocessors;
  const int64_t long_runs = shape.document_tokens / kLeastDocumentTokens;
  const int64_t runs =
      std::max({int64_t{1}, wave / windows, std::min(kMostWaves * wave / windows, long_runs)});
  plan.documents_per_block = std::max<int64_t>(1, ceil_div(shape.documents, runs));

  KernelPlan& kernel = plan.kernel;
  kernel.name = plan.tensor_cores ? "maxsim_forward_tensor" : "maxsim_forward";
  kernel.grid[0] = shape.queries == 0 ? 0 : static_cast<uint32_t>(windows);
  kernel.grid[1] = ceil_div(shape.documents, plan.documents_per_block);
  kernel.block = plan.tensor_cores ? kTensorThreads : kPlainThreads;
  kernel.shared_bytes = tiles_bytes + 2 * rows * 4;  // and two rows of maxima
  kernel.bytes = shape.vectors() + 4 * shape.scores() + (shape.winners ? 2 * shape.pairs() : 0);
  kernel.flops = 2 * static_cast<double>(shape.query_tokens) *
                 static_cast<double>(shape.document_tokens) * static_cast<double>(shape.width);
  return plan;
}

// ---- backward

constexpr int kGatherThreads = 256;  // eight warps

// A warp owns a query token and gathers its winners.
inline KernelPlan maxsim_backward_queries_plan(const MaxSimShape& shape) {
  KernelPlan plan;
  plan.name = "maxsim_backward_queries";
  plan.grid[0] = ceil_div(shape.query_tokens, kGatherThreads / 32);
  plan.block = kGatherThreads;
  plan.bytes = static_cast<double>(shape.document_tokens * shape.width * shape.vector_bytes +
                                   shape.query_tokens * shape.width * 4 +
                                   (shape.queries + shape.documents + 2) * 4) +
               4 * shape.scores() + 2 * shape.pairs();
  plan.flops = 2 * shape.pairs() * static_cast<double>(shape.width);
  return plan;
}

// A block owns a slab of a document's tokens and sorts the query tokens they won, kSortRows query
// tokens at a time.
struct MaxSimDocumentsPlan {
  KernelPlan kernel;
  int64_t slab = 0;  // tokens, at most kMostSlab
};

constexpr int kSortRows = 4096;
constexpr int kMostSlab = kGatherThreads;  // a thread scans the counts of one token
constexpr int kLeastSlab = 32;             // each slab reads all of its document's winners
// Shared memory: weights (f32), winners and sorted query tokens (u16), the counts of each warp
// (u16) and where each token's query tokens begin (i32).
constexpr int64_t kSortBytes = kSortRows * (4 + 2 + 2) + kGatherThreads / 32 * kMostSlab * 2 +
                               (kMostSlab + 1 + kGatherThreads / 32) * 4;

inline MaxSimDocumentsPlan maxsim_backward_documents_plan(const MaxSimShape& shape,
                                                          int multiprocessors) {
  const int64_t longest = std::max<int64_t>(1, shape.longest_document);
  const int64_t wanted = ceil_div(2 * multiprocessors, std::max<int64_t>(1, shape.documents));
  const int64_t slabs = std::max<int64_t>(ceil_div(longest, kMostSlab),
                                          std::min<int64_t>(wanted, ceil_div(longest, kLeastSlab)));
  MaxSimDocumentsPlan plan;
  plan.slab = ceil_div(longest, slabs);
  plan.kernel.name = "maxsim_backward_documents";
  plan.kernel.grid[0] = static_cast<uint32_t>(shape.documents);
  plan.kernel.grid[1] = ceil_div(longest, plan.slab);
  plan.kernel.block = kGatherThreads;
  plan.kernel.shared_bytes = kSortBytes;
  plan.kernel.bytes = static_cast<double>(shape.query_tokens * shape.width * shape.vector_bytes +
                                          shape.document_tokens * shape.width * 4 +
                                          (shape.queries + shape.documents + 2) * 4) +
                      4 * shape.scores() + 2 * shape.pairs();
  plan.kernel.flops = 2 * shape.pairs() * static_cast<double>(shape.width);
  return plan;
}

}  // namespace maxim

// Launches of attention's kernels as pure functions of the batch's shape, shared by the launchers,
// the tests and the benchmark. No CUDA header needed.
//
// Lengths are on the device, so grids are sized for the longest sequence and a block beyond the
// length of its own exits at once. Blocks are numbered (sequence, row tile, head), the head
// fastest: neighbours read neighbouring columns of the same rows. Declared work is the least that
// is possible: that of sequences of equal lengths whose rows are all keys.
#pragma once

#include <algorithm>

#include "kernels/cuda/plan.h"
#include "runtime/tensor.h"

namespace maxim {

struct AttentionShape {
  DType type = DType::f32;
  int64_t tokens = 0, sequences = 0, longest = 0;
  int64_t heads = 0, width = 0;  // width of a head: 32 or 64
  int64_t shared_bytes = 0;      // what the device grants a block
};

// f32: 8 warps own 8 rows each and meet the other side 32 rows, one a lane, at a time. 4 floats of
// padding let 8 lanes read 16 bytes of 8 rows without a bank conflict.
constexpr int kAttentionOwned = 8;
constexpr int kAttentionWarps = 8;
constexpr int kAttentionTile = kAttentionOwned * kAttentionWarps;
constexpr int kAttentionLanes = 32;
constexpr int attention_row(int width) { return width + 4; }
// f32, short: 96 rows are read against K and V, which with them take 152 of the 163 KB that an A100
// grants a block when a sequence has 256 keys of 64 columns. 16 warps would leave 128 registers a
// thread, too few for 8 rows' scores with 256 keys.
constexpr int kAttentionShortF32Warps = 12;

// 16 bits: a warp owns 16 rows, and keys are in flight 64 at a time. Up to kAttentionShort rows a
// head's K and V stay in shared memory; then the backward pass has all rows in one block, of up to
// 16 warps with 128 registers a thread, and takes 160 of the 163 KB that an A100 grants. Few rows a
// block waste little on short sequences; more read K and V less often, and long sequences would
// wait for L2 otherwise.
constexpr int kAttentionShort = 256;
constexpr int kAttentionShortWarps = 4;
constexpr int kAttentionLongWarps = 8;
constexpr int kAttentionLongTile = 16 * kAttentionLongWarps;
constexpr int kAttentionKeyTile = 64;
// Of the owners of keys: 64 query rows at a time keep two stages within the 99 KB of small GPUs.
constexpr int kAttentionKeyWarps = 4;
constexpr int kAttentionKeyRows = 16 * kAttentionKeyWarps;

constexpr int kAttentionDeltaBlock = 256;

// One kernel over tiles of `rows` rows. Its work: `columns` multiples of H a row, `numbers` f32 a
// row and head, `products` of 2 d FLOPs a score.
struct AttentionKernel {
  const char* name = "";
  int64_t rows = 0, warps = 0, shared_bytes = 0;
  int columns = 0, numbers = 0, products = 0;
};

inline KernelPlan attention_plan(const AttentionShape& s, const AttentionKernel& kernel) {
  if (s.tokens == 0) return {.name = kernel.name};
  const int64_t blocks = s.sequences * ceil_div(s.longest, kernel.rows) * s.heads;
  MAXIM_CHECK(blocks < int64_t{1} << 31, "{}: {} blocks, {} sequences, the longest {} rows",
              kernel.name, blocks, s.sequences, s.longest);
  const double t = static_cast<double>(s.tokens), h = static_cast<double>(s.heads * s.width);
  return {.name = kernel.name,
          .grid = {static_cast<uint32_t>(blocks), 1, 1},
          .block = static_cast<uint32_t>(32 * kernel.warps),
          .shared_bytes = kernel.shared_bytes,
          .bytes = t * h * kernel.columns * static_cast<double>(size_of(s.type)) +
                   t * static_cast<double>(s.heads * kernel.numbers) * 4,
          .flops = 2.0 * kernel.products * h * t * t / static_cast<double>(s.sequences)};
}

// Forward: q, k, v in, out and log_sum_exp out; q k^T and p v. Short: all K and V of a head lie in
// shared memory beside a block's rows of q.
inline AttentionKernel attention_forward_short(const AttentionShape& s) {
  const bool f32 = s.type == DType::f32;
  const int64_t owned = f32 ? kAttentionOwned : 16;
  const int64_t warps = std::min<int64_t>(f32 ? kAttentionShortF32Warps : kAttentionShortWarps,
                                          ceil_div(s.longest, owned));
  const int64_t keys = kAttentionLanes * ceil_div(s.longest, kAttentionLanes);
  return {.name = f32 ? "attention_forward_short_f32" : "attention_forward_short",
          .rows = owned * warps,
          .warps = warps,
          .shared_bytes = size_of(s.type) * s.width * (owned * warps + 2 * keys),
          .columns = 4,
          .numbers = 1,
          .products = 2};
}

// Whether that is what runs.
inline bool attention_forward_is_short(const AttentionShape& s) {
  return s.longest <= kAttentionShort && attention_forward_short(s).shared_bytes <= s.shared_bytes;
}

inline KernelPlan attention_forward_plan(const AttentionShape& s) {
  if (attention_forward_is_short(s)) return attention_plan(s, attention_forward_short(s));
  AttentionKernel kernel = {.columns = 4, .numbers = 1, .products = 2};
  if (s.type == DType::f32) {
    kernel.name = "attention_forward_long_f32";
    kernel.rows = kAttentionTile;
    kernel.warps = kAttentionWarps;
    kernel.shared_bytes =
        4 * ((kAttentionTile + 2 * kAttentionLanes) * attention_row(static_cast<int>(s.width)) +
             kAttentionTile * kAttentionLanes);
  } else {
    kernel.name = "attention_forward_long";
    kernel.rows = kAttentionLongTile;
    kernel.warps = kAttentionLongWarps;
    kernel.shared_bytes = 2 * s.width * (kAttentionLongTile + 2 * 2 * kAttentionKeyTile);
  }
  return attention_plan(s, kernel);
}

// f32: all of the backward pass. q, k, v, out, d_out, log_sum_exp in, d_q, d_k, d_v out; q k^T and
// d_out v^T by the owners of keys and by those of query rows, d_q, d_k, d_v. Tiles of both sides'
// rows, two of each, a tile of scores, and log_sum_exp and delta of a tile's rows.
inline KernelPlan attention_backward_f32_plan(const AttentionShape& s) {
  const int64_t row = attention_row(static_cast<int>(s.width));
  KernelPlan plan = attention_plan(
      s, {.name = "attention_backward_f32",
          .rows = kAttentionTile,
          .warps = kAttentionWarps,
          .shared_bytes = 4 * (2 * (kAttentionTile + kAttentionLanes) * row +
                               kAttentionTile * kAttentionLanes + 2 * kAttentionTile),
          .columns = 8,
          .numbers = 1,
          .products = 7});
  plan.grid[1] = 2;  // the role
  return plan;
}

// 16 bits, short: all of the backward pass. q, k, v, out, d_out, log_sum_exp in, d_q, d_k, d_v out;
// q k^T, d_out v^T, d_q, d_k, d_v. A block has all rows of a head; one stage of keys is enough for
// one tile of them.
inline KernelPlan attention_backward_short_plan(const AttentionShape& s) {
  const int64_t warps = ceil_div(s.longest, 16), stages = s.longest > kAttentionKeyTile ? 2 : 1;
  return attention_plan(s,
                        {.name = "attention_backward_short",
                         .rows = 16 * warps,
                         .warps = warps,
                         .shared_bytes = 2 * (16 * warps * (2 * s.width + 2 * kAttentionKeyTile) +
                                              stages * 2 * kAttentionKeyTile * s.width),
                         .columns = 8,
                         .numbers = 1,
                         .products = 5});
}

// Whether that is what runs.
inline bool attention_backward_is_short(const AttentionShape& s) {
  return s.type != DType::f32 && s.longest <= kAttentionShort &&
         attention_backward_short_plan(s).shared_bytes <= s.shared_bytes;
}

// 16 bits, longer: delta of each row and head: d_out and out in.
inline KernelPlan attention_delta_plan(const AttentionShape& s) {
  const int64_t lanes = s.width * size_of(s.type) / 16;
  const double elements = static_cast<double>(s.tokens * s.heads * s.width);
  return {.name = "attention_delta",
          .grid = {ceil_div(s.tokens * s.heads * lanes, kAttentionDeltaBlock), 1, 1},
          .block = kAttentionDeltaBlock,
          .bytes = 2 * elements * static_cast<double>(size_of(s.type)) +
                   static_cast<double>(s.tokens * s.heads) * 4,
          .flops = 2 * elements};
}

// Then d_k and d_v by the owners of keys: q, k, v, d_out, log_sum_exp, delta in; q k^T, d_out v^T,
// d_k, d_v.
inline KernelPlan attention_backward_keys_plan(const AttentionShape& s) {
  return attention_plan(
      s, {.name = "attention_backward_keys_mma",
          .rows = kAttentionKeyTile,
          .warps = kAttentionKeyWarps,
          .shared_bytes = 2 * (2 * kAttentionKeyTile * s.width +
                               kAttentionKeyRows * (2 * kAttentionKeyTile + 2 * 2 * s.width)),
          .columns = 6,
          .numbers = 2,
          .products = 4});
}

// And d_q by the owners of query rows: q, k, v, d_out, log_sum_exp, delta in; q k^T, d_out v^T,
// d_q.
inline KernelPlan attention_backward_queries_plan(const AttentionShape& s) {
  return attention_plan(
      s, {.name = "attention_backward_queries_mma",
          .rows = kAttentionLongTile,
          .warps = kAttentionLongWarps,
          .shared_bytes = 2 * s.width * (2 * kAttentionLongTile + 2 * 2 * kAttentionKeyTile),
          .columns = 5,
          .numbers = 2,
          .products = 3});
}

}  // namespace maxim

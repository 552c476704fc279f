// Launches of the row-wise kernels (LayerNorm, embedding, GELU, normalisation, rows, cross-entropy,
// column sums, AdamW) as pure functions of the shape. `element` is the size of an activation in
// bytes (2 or 4), `pack` the neighbouring elements that a lane moves at once (pack_width()). These
// kernels are bound by memory: `bytes` is what each has to move, FLOPs are not counted.
#pragma once

#include <algorithm>

#include "kernels/cuda/plan.h"
#include "runtime/error.h"

namespace maxim {

constexpr int kRowThreads =
    256;  // of every block: 8 warps, so that 65,536 registers hold 4-8 blocks
constexpr int kRowWarps = kRowThreads / 32;

// A row is kept in registers: by a warp, 32 values a lane, up to 1,024 columns (BERT-large), else
// by the whole block. Columns one at a time (odd widths) cost more registers: 16 a lane.
constexpr int lane_columns(int pack) { return pack == 1 ? 16 : 32; }
constexpr int warp_columns(int pack) { return 32 * lane_columns(pack); }
constexpr int64_t most_row_columns(int pack) { return kRowThreads * lane_columns(pack); }
inline int64_t rows_at_once(int64_t columns, int pack) {
  return columns <= warp_columns(pack) ? kRowWarps : 1;
}
constexpr int64_t kRowScratchBytes = 2 * 32 * sizeof(float);  // two block_sum()s of a long row

// Rows cut into blocks whose sums are added in order: a function of the shape alone, never of the
// GPU, so that the bits are the same on every one.
struct RowBlocks {
  int64_t rows, rows_per_block;
  RowBlocks(int64_t rows_, int64_t least, int64_t most)
      : rows(rows_), rows_per_block(std::max(least, int64_t{ceil_div(rows_, most)})) {}
  int64_t count() const { return ceil_div(rows, rows_per_block); }
};
// LayerNorm's backward pass: 528 blocks are two waves of two blocks on 132 multiprocessors; with 16
// rows a block or more, the partial sums stay below 1 / 10 of what is read and written.
constexpr int64_t kMostNormBlocks = 528;
inline RowBlocks norm_row_blocks(int64_t rows) { return {rows, 16, kMostNormBlocks}; }
// The last block of a group adds the sums of its blocks, the last of all those of the groups: 22
// and 24 of them at most, so that neither waits long.
constexpr unsigned kNormGroup = 22;
constexpr int64_t kMostNormGroups = (kMostNormBlocks + kNormGroup - 1) / kNormGroup;
// Sums of columns: the grid also has one block for every 32 packs of columns. The last of a column
// of blocks adds their sums: no more than it can fetch in a few round trips to memory.
constexpr int64_t kMostColumnBlocks = 64;
inline RowBlocks column_row_blocks(int64_t rows) { return {rows, 32, kMostColumnBlocks}; }

inline void check_row_columns(const char* name, int64_t columns, int pack) {
  MAXIM_CHECK(columns <= most_row_columns(pack), "{}: {} columns, {} at a time: at most {}", name,
              columns, pack, most_row_columns(pack));
}
inline KernelPlan row_plan(const char* name, int64_t rows, int64_t columns, int pack,
                           double bytes) {
  check_row_columns(name, columns, pack);
  return {.name = name,
          .grid = {ceil_div(rows, rows_at_once(columns, pack)), 1, 1},
          .block = kRowThreads,
          .shared_bytes = kRowScratchBytes,
          .bytes = bytes};
}
inline double elements(int64_t rows, int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}

inline KernelPlan layer_norm_forward_plan(int64_t rows, int64_t columns, int64_t element,
                                          int pack) {
  return row_plan("layer_norm_forward", rows, columns, pack, elements(rows, columns) * 4 * element);
}
inline KernelPlan layer_norm_apply_plan(int64_t rows, int64_t columns, int64_t element, int pack) {
  return row_plan("layer_norm_apply", rows, columns, pack, elements(rows, columns) * 2 * element);
}
// The word rows are counted once a token; positions and types come from the caches.
inline KernelPlan embedding_forward_plan(int64_t rows, int64_t columns, int64_t element, int pack) {
  return row_plan("embedding_forward", rows, columns, pack,
                  elements(rows, columns) * (2 * element + sizeof(float)));
}
inline KernelPlan embedding_apply_plan(int64_t rows, int64_t columns, int64_t element, int pack) {
  return row_plan("embedding_apply", rows, columns, pack, elements(rows, columns) * 2 * element);
}
inline KernelPlan normalize_forward_plan(int64_t rows, int64_t columns, int64_t element, int pack) {
  return row_plan("normalize_forward", rows, columns, pack, elements(rows, columns) * 2 * element);
}
inline KernelPlan normalize_backward_plan(int64_t rows, int64_t columns, int64_t element,
                                          int pack) {
  return row_plan("normalize_backward", rows, columns, pack,
                  elements(rows, columns) * (2 * element + sizeof(float)));
}

// Blocks' sums are written and read, and their total is added to what is there.
inline double sums_bytes(int64_t blocks, int64_t columns) {
  return blocks == 0 ? 0 : elements(2 * blocks + 2, columns) * sizeof(float);
}

// Each thread has its own sums of three kinds for its columns in shared memory (ThreadSums).
inline KernelPlan norm_backward_plan(const char* name, int64_t rows, int64_t columns, int pack,
                                     double bytes) {
  check_row_columns(name, columns, pack);
  const int64_t packs = ceil_div(std::min<int64_t>(columns, warp_columns(pack)), 32 * pack);
  const int64_t blocks = norm_row_blocks(rows).count();
  return {
      .name = name,
      .grid = {static_cast<uint32_t>(blocks), 1, 1},
      .block = kRowThreads,
      .shared_bytes = kRowScratchBytes + 3 * packs * pack * kRowThreads * int64_t{sizeof(float)},
      .bytes = bytes + sums_bytes(blocks + ceil_div(blocks, kNormGroup), 3 * columns)};
}
inline KernelPlan layer_norm_backward_plan(int64_t rows, int64_t columns, int64_t element, int pack,
                                           bool wants_d_x, bool wants_y) {
  return norm_backward_plan("layer_norm_backward", rows, columns, pack,
                            elements(rows, columns) * (3 + wants_d_x + wants_y) * element);
}
inline KernelPlan embedding_backward_plan(int64_t rows, int64_t columns, int64_t element,
                                          int pack) {
  return norm_backward_plan("embedding_backward", rows, columns, pack,
                            elements(rows, columns) * 3 * element);
}

// Tiles of 32 packs of columns by one block of rows.
inline KernelPlan column_plan(const char* name, int64_t rows, int64_t columns, int pack,
                              double bytes) {
  return {.name = name,
          .grid = {ceil_div(columns, 32 * pack),
                   static_cast<uint32_t>(column_row_blocks(rows).count()), 1},
          .block = kRowThreads,
          .shared_bytes = kRowThreads * pack * int64_t{sizeof(float)},
          .bytes = bytes + sums_bytes(column_row_blocks(rows).count(), columns)};
}
inline KernelPlan column_sums_plan(int64_t rows, int64_t columns, int64_t element, int pack) {
  return column_plan("column_sums", rows, columns, pack, elements(rows, columns) * element);
}
inline KernelPlan gelu_backward_plan(int64_t rows, int64_t columns, int64_t element, int pack) {
  return column_plan("gelu_backward", rows, columns, pack, elements(rows, columns) * 4 * element);
}
inline KernelPlan gelu_forward_plan(int64_t size, int64_t element, int pack) {
  return {.name = "gelu_forward",
          .grid = {ceil_div(size, kRowThreads * pack), 1, 1},
          .block = kRowThreads,
          .bytes = static_cast<double>(2 * size * element)};
}

// The tables' gradients. Sorted tokens are cut into pieces, one for each warp: whole warps of
// tokens, and at most 1,024 pieces, since each has a row of partial sums at both ends.
constexpr int64_t kMostPieces = 1024;
inline RowBlocks token_pieces(int64_t tokens) {
  RowBlocks pieces(tokens, 32, kMostPieces);
  pieces.rows_per_block = int64_t{ceil_div(pieces.rows_per_block, 32)} * 32;
  return pieces;
}
inline KernelPlan token_keys_plan(int64_t tokens) {
  return {.name = "token_keys",
          .grid = {ceil_div(tokens, kRowThreads), 1, 1},
          .block = kRowThreads,
          .bytes = static_cast<double>(12 * tokens)};
}
// `bytes` as if no word came twice.
inline KernelPlan sum_runs_plan(int64_t tokens, int64_t columns, int64_t element, int pack) {
  return {
      .name = "sum_runs",
      .grid = {ceil_div(token_pieces(tokens).count(), kRowWarps), ceil_div(columns, 32 * pack), 1},
      .block = kRowThreads,
      .bytes = elements(tokens, columns) * (element + 2 * sizeof(float))};
}
inline KernelPlan join_runs_plan(int64_t tokens, int64_t columns, int pack) {
  return {
      .name = "join_runs",
      .grid = {ceil_div(token_pieces(tokens).count(), kRowWarps), ceil_div(columns, 32 * pack), 1},
      .block = kRowThreads,
      .bytes = elements(token_pieces(tokens).count(), columns) * sizeof(float)};
}
inline KernelPlan sum_positions_plan(int64_t tokens, int64_t longest, int64_t columns,
                                     int64_t element, int pack) {
  return {.name = "sum_positions",
          .grid = {ceil_div(columns, 32 * pack), static_cast<uint32_t>(longest), 1},
          .block = kRowThreads,
          .shared_bytes = kRowThreads * pack * int64_t{sizeof(float)},
          .bytes =
              elements(tokens, columns) * element + 2 * elements(longest, columns) * sizeof(float)};
}

// 8 elements a thread.
inline KernelPlan convert_plan(int64_t size, int64_t from, int64_t to) {
  return {.name = "convert",
          .grid = {ceil_div(size, 8 * kRowThreads), 1, 1},
          .block = kRowThreads,
          .bytes = static_cast<double>(size * (from + to))};
}
inline KernelPlan gather_rows_plan(int64_t rows, int64_t row_bytes) {
  return {.name = "gather_rows",
          .grid = {ceil_div(rows, kRowWarps), 1, 1},
          .block = kRowThreads,
          .bytes = 2 * elements(rows, row_bytes)};
}
// One turn for every row of the list and one for what is behind the last.
inline KernelPlan scatter_rows_plan(int64_t rows, int64_t all_rows, int64_t row_bytes) {
  return {.name = "scatter_rows",
          .grid = {ceil_div(rows + 1, kRowWarps), 1, 1},
          .block = kRowThreads,
          .bytes = elements(rows + all_rows, row_bytes)};
}

inline KernelPlan cross_entropy_plan(int64_t rows, int64_t columns) {
  return {.name = "cross_entropy",
          .grid = {static_cast<uint32_t>(rows), 1, 1},
          .block = kRowThreads,
          .shared_bytes = 32 * (sizeof(float) + sizeof(double)),
          .bytes = elements(rows, columns) * 2 * sizeof(float)};
}
inline KernelPlan add_losses_plan(int64_t rows) {
  return {.name = "add_losses",
          .grid = {rows == 0 ? 0u : 1u, 1, 1},
          .block = kRowThreads,
          .shared_bytes = 32 * sizeof(double),
          .bytes = static_cast<double>(rows) * sizeof(double)};
}

// square_sum: 64 elements a thread.
constexpr int64_t kSquareBlock = 64 * kRowThreads;
inline KernelPlan square_sum_plan(int64_t size) {
  return {.name = "square_sum",
          .grid = {ceil_div(size, kSquareBlock), 1, 1},
          .block = kRowThreads,
          .shared_bytes = 32 * sizeof(double),
          .bytes = static_cast<double>(size) * sizeof(float)};
}
inline KernelPlan add_squares_plan(int64_t blocks) {
  return {.name = "add_squares",
          .grid = {1, 1, 1},
          .block = kRowThreads,
          .shared_bytes = 32 * sizeof(double),
          .bytes = static_cast<double>(blocks) * sizeof(double)};
}
inline KernelPlan adamw_step_plan() {
  return {.name = "adamw_step", .grid = {1, 1, 1}, .block = 32, .bytes = 64};
}
// Elements [begin, end): p, m, v are read and written, gradients read, a 16-bit copy written.
inline KernelPlan adamw_plan(int64_t begin, int64_t end, bool with_copy) {
  return {.name = "adamw",
          .grid = {ceil_div(end - begin / 4 * 4, 4 * kRowThreads), 1, 1},
          .block = kRowThreads,
          .bytes = (with_copy ? 30.0 : 28.0) * static_cast<double>(end - begin)};
}

}  // namespace maxim

// What the row-wise kernels of a GPU declare: launches and bytes of each operation in closed form,
// and blocks of rows that cover every row once.
#include "kernels/cuda/row_plans.h"

#include "tests/catch.h"
#include "tests/kernels/backends.h"

using namespace maxim_tests;

TEST_CASE("row plans: blocks of rows cover all rows, none is empty, their number is bounded") {
  for (const int64_t rows :
       {0, 1, 15, 16, 17, 31, 32, 33, 8191, 8192, 8193, 8448, 8449, 32768, 32769, 1 << 20})
    for (const auto& [blocks, most] : {std::pair{maxim::norm_row_blocks(rows), 528},
                                       {maxim::column_row_blocks(rows), 256},
                                       {maxim::token_pieces(rows), 1024}}) {
      INFO(rows << " rows, at most " << most << " blocks");
      CHECK(blocks.count() * blocks.rows_per_block >= rows);
      CHECK(
          (rows == 0 ? blocks.count() == 0 : (blocks.count() - 1) * blocks.rows_per_block < rows));
      CHECK(blocks.count() <= most);
    }
  CHECK(maxim::token_pieces(32769).rows_per_block == 64);  // whole warps of tokens
}

TEST_CASE("row plans: long rows fit a block or are refused") {
  CHECK(maxim::layer_norm_forward_plan(10, 1024, 4, 4).grid[0] == 2);  // 8 rows a block
  CHECK(maxim::layer_norm_forward_plan(10, 1028, 4, 4).grid[0] == 10);
  CHECK(maxim::layer_norm_forward_plan(10, 8192, 4, 4).grid[0] == 10);
  CHECK_THROWS_AS(maxim::layer_norm_forward_plan(10, 8196, 4, 4), maxim::Error);
  CHECK_THROWS_AS(maxim::layer_norm_backward_plan(10, 4097, 4, 1, true, true), maxim::Error);
  CHECK(maxim::layer_norm_forward_plan(0, 1024, 4, 4).empty());
  // Three sums of 32 values a thread are 96 KB: what a block may have from compute capability 8.6
  // on.
  CHECK(maxim::layer_norm_backward_plan(10, 8192, 2, 8, true, true).shared_bytes <= 99 * 1024);
}

TEST_CASE("row plans: launches and bytes of the operations of a layer") {
  constexpr int64_t kRows = 40, kColumns = 64;
  constexpr double kElements = kRows * kColumns;
  for (Backend& backend : backends()) {
    Operands o(*backend.device);
    maxim::Ops& ops = *backend.ops;
    const maxim::Sequences sequences = o.put(ragged({33, 7}));
    for (const maxim::DType type : backend.types) {
      const double e = static_cast<double>(maxim::size_of(type));
      const auto rows = [&] {
        return o.put(std::vector<float>(kRows * kColumns), kRows, kColumns, type);
      };
      const maxim::Tensor a = rows(), b = rows(), c = rows(), d = rows();
      const maxim::Tensor mean = o.zeros(kRows), rstd = o.zeros(kRows), w = o.zeros(kColumns);
      const maxim::Tensor sums = o.zeros(kColumns);
      // Runs an operation; all its launches, and the bytes of the kernel that bears its name.
      const auto require = [&](const std::string& name, int64_t launches, double bytes, auto run) {
        ops.reset_counts();
        run();
        int64_t all = 0;
        for (const auto& [kernel, count] : ops.counts()) all += count.launches;
        INFO(backend.name << ", " << maxim::name_of(type) << ", " << name);
        if (ops.counts().empty()) {  // it launches nothing
          CHECK(backend.name == "cpu");
          return;
        }
        CHECK(all == launches);
        CHECK(ops.counts().at(name).bytes == bytes);
      };
      require("layer_norm_forward", 1, 4 * e * kElements, [&] {
        ops.layer_norm_forward({.y = a,
                                .s = b,
                                .mean = mean,
                                .rstd = rstd,
                                .x = c,
                                .residual = d,
                                .gamma = w,
                                .beta = w},
                               sequences);
      });
      const maxim::LayerNormBackward backward{.d_s = a,
                                              .d_x = b,
                                              .d_gamma = sums,
                                              .d_beta = sums,
                                              .d_bias = sums,
                                              .d_y = c,
                                              .s = d,
                                              .mean = mean,
                                              .rstd = rstd,
                                              .gamma = w};
      // 40 rows are 3 blocks of 16 and 2 of 32. A block's sums are written and read, those of the
      // blocks of LayerNorm as a group once more, and what they are added to is read and written.
      const double norm_sums = 4.0 * 3 * kColumns * (2 * (3 + 1) + 2);
      const double column_sums = 4.0 * kColumns * (2 * 2 + 2);
      require("layer_norm_backward", 1, 4 * e * kElements + norm_sums,
              [&] { ops.layer_norm_backward(backward, sequences); });
      require("layer_norm_apply", 1, 2 * e * kElements,
              [&] { ops.layer_norm_apply(a, b, mean, rstd, w, w); });
      require("gelu_forward", 1, 2 * e * kElements, [&] { ops.gelu_forward(a, b); });
      require("gelu_backward", 1, 4 * e * kElements + column_sums,
              [&] { ops.gelu_backward(a, b, sums, c, d); });
      require("column_sums", 1, e * kElements + column_sums, [&] { ops.add_column_sums(sums, a); });
    }
  }
}

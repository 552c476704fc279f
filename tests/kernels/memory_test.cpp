// Scratch memory of a backend does not depend on the number of rows: a first short step is enough.
#include <functional>

#include "tests/catch.h"
#include "tests/kernels/backends.h"

using namespace maxim_tests;

namespace {

constexpr int64_t kWidth = 24;

// Operands for one number of rows.
struct Rows {
  Rows(maxim::Device& device, int32_t rows)
      : operands(device),
        sequences(operands.put(ragged({rows}))),
        x(operands.zeros(rows, kWidth)),
        product(operands.zeros(rows, kWidth)),
        weights(operands.zeros(kWidth, kWidth)),
        table(operands.zeros(rows + 50, kWidth)),
        row(operands.zeros(rows)),
        column(operands.zeros(kWidth)) {}

  Operands operands;
  maxim::Sequences sequences;
  maxim::Tensor x, product, weights, table, row, column;
};

using Operation = std::function<void(maxim::Ops&, const Rows&)>;

// The operations that reduce over rows or multiply matrices.
const std::vector<Operation> kOperations = {
    [](maxim::Ops& ops, const Rows& r) {
      ops.gemm({.c = r.product, .a = r.x, .b = r.weights, .transpose_b = true});
    },
    [](maxim::Ops& ops, const Rows& r) { ops.add_column_sums(r.column, r.x); },
    [](maxim::Ops& ops, const Rows& r) {
      ops.layer_norm_backward({.d_s = r.x,
                               .d_gamma = r.column,
                               .d_beta = r.column,
                               .d_y = r.x,
                               .s = r.x,
                               .mean = r.row,
                               .rstd = r.row,
                               .gamma = r.column,
                               .dropout = {.probability = 0.1f}},
                              r.sequences);
    },
    [](maxim::Ops& ops, const Rows& r) {
      ops.embedding_backward({.d_word = r.table,
                              .d_position = r.table,
                              .d_type = r.table,
                              .d_gamma = r.column,
                              .d_beta = r.column,
                              .d_y = r.x,
                              .s = r.x,
                              .mean = r.row,
                              .rstd = r.row,
                              .gamma = r.column,
                              .dropout = {.probability = 0.1f}},
                             r.sequences);
    },
    [](maxim::Ops& ops, const Rows& r) { ops.gelu_backward(r.product, r.x, r.column, r.x, r.x); },
};

}  // namespace

TEST_CASE("no operation takes memory after the first call, however long the batch") {
  for (size_t i = 0; i < kOperations.size(); ++i) {
    std::vector<Backend> fresh = make_backends();
    for (Backend& backend : fresh) {
      const Rows small(*backend.device, 10), large(*backend.device, 5000);
      kOperations[i](*backend.ops, small);
      const int64_t before = backend.device->allocations();
      kOperations[i](*backend.ops, large);
      INFO("operation " << i);
      CHECK(backend.device->allocations() == before);
    }
  }
}

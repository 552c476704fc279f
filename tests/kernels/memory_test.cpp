// Scratch memory of a backend does not depend on the number of rows: a first short step is enough.
#include "tests/catch.h"
#include "tests/kernels/backends.h"

using namespace maxim_tests;

namespace {

// The operations with reductions over rows, at one number of rows.
class Step {
 public:
  Step(Backend& backend, int32_t rows)
      : ops_(*backend.ops), o_(*backend.device), sequences_(o_.put(ragged({rows}))) {
    x_ = o_.zeros(rows, kWidth);
    product_ = o_.zeros(rows, kWidth);
    weights_ = o_.zeros(kWidth, kWidth);
    table_ = o_.zeros(rows + 50, kWidth);
    row_ = o_.zeros(rows);
    column_ = o_.zeros(kWidth);
  }
  void run() {
    const maxim::Dropout dropout{.probability = 0.1f};
    ops_.gemm({.c = product_, .a = x_, .b = weights_, .transpose_b = true});
    ops_.add_column_sums(column_, x_);
    ops_.layer_norm_backward({.d_s = x_,
                              .d_gamma = column_,
                              .d_beta = column_,
                              .d_y = x_,
                              .s = x_,
                              .mean = row_,
                              .rstd = row_,
                              .gamma = column_,
                              .dropout = dropout},
                             sequences_);
    ops_.embedding_backward({.d_word = table_,
                             .d_position = table_,
                             .d_type = table_,
                             .d_gamma = column_,
                             .d_beta = column_,
                             .d_y = x_,
                             .s = x_,
                             .mean = row_,
                             .rstd = row_,
                             .gamma = column_,
                             .dropout = dropout},
                            sequences_);
    ops_.gelu_backward(product_, x_, column_, x_, x_);
  }

 private:
  static constexpr int64_t kWidth = 24;

  maxim::Ops& ops_;
  Operands o_;
  maxim::Sequences sequences_;
  maxim::Tensor x_, product_, weights_, table_, row_, column_;
};

}  // namespace

TEST_CASE("no operation takes memory after the first step, however long the batch") {
  std::vector<Backend> fresh = make_backends();
  for (Backend& backend : fresh) {
    Step small(backend, 10), large(backend, 5000);
    small.run();
    const int64_t before = backend.device->allocations();
    large.run();
    CHECK(backend.device->allocations() == before);
  }
}

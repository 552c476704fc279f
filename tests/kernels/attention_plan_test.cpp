// The launches of attention on CUDA, as pure functions of the shape.
#include "kernels/cuda/attention.h"
#include "tests/catch.h"

using namespace maxim;

namespace {

constexpr int64_t kSmallGpu = 99 * 1024, kA100 = 163 * 1024;  // what they grant a block

AttentionShape shape(DType type, int64_t longest, int64_t width) {
  return {.type = type,
          .tokens = 3 * longest,
          .sequences = 4,
          .longest = longest,
          .heads = 12,
          .width = width,
          .shared_bytes = kA100};
}

}  // namespace

TEST_CASE("attention's launches: a batch without rows starts nothing") {
  for (const DType type : {DType::f32, DType::bf16}) {
    AttentionShape s = shape(type, 0, 64);
    for (const int64_t sequences : {0, 4}) {
      s.sequences = sequences;
      CHECK(attention_forward_plan(s).empty());
      CHECK(attention_backward_short_plan(s).empty());
      CHECK(attention_delta_plan(s).empty());
      CHECK(attention_backward_keys_plan(s).empty());
      CHECK(attention_backward_queries_plan(s).empty());
    }
  }
}

TEST_CASE(
    "attention's launches: every row of the longest sequence has a block, in what a GPU has") {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t width : {32, 64})
      for (const int64_t longest :
           {1, 16, 17, 63, 64, 65, 128, 129, 240, 241, 255, 256, 257, 512, 8192}) {
        const AttentionShape s = shape(type, longest, width);
        std::vector<KernelPlan> plans = {attention_forward_plan(s)};
        if (attention_backward_is_short(s)) {
          plans.push_back(attention_backward_short_plan(s));
        } else {
          plans.push_back(attention_backward_keys_plan(s));
          plans.push_back(attention_backward_queries_plan(s));
          // These have to do where the short one does not fit.
          for (const KernelPlan& plan : plans) CHECK(plan.shared_bytes <= kSmallGpu);
        }
        for (const KernelPlan& plan : plans) {
          INFO(plan.name << ", " << name_of(type) << ", " << longest << " rows of " << width);
          CHECK(plan.grid[0] % (s.sequences * s.heads) == 0);
          CHECK(plan.shared_bytes <= kA100);
          CHECK(plan.block % 32 == 0);
          CHECK(plan.block <= 512);
        }
        if (type != DType::f32)  // a warp has 16 rows
          CHECK(plans[0].grid[0] / (s.sequences * s.heads) * plans[0].block / 32 * 16 >= longest);
        CHECK(attention_backward_is_short(s) == (type != DType::f32 && longest <= 256));
      }
}

TEST_CASE("attention's launches: a small GPU takes the long way where the short one does not fit") {
  AttentionShape s = shape(DType::bf16, 256, 64);
  s.shared_bytes = kSmallGpu;
  CHECK(!attention_backward_is_short(s));
  s.longest = 128;
  CHECK(attention_backward_is_short(s));
}

TEST_CASE("attention's launches: work of sequences of equal lengths") {
  // 4 sequences of 100 rows, 12 heads of 64: a product is 2 * 4 * 100 * 100 * 768 FLOPs.
  AttentionShape s = shape(DType::bf16, 100, 64);
  s.tokens = 400;
  const double product = 2.0 * 4 * 100 * 100 * 768, column = 400.0 * 768 * 2,
               number = 400.0 * 12 * 4;
  CHECK(attention_forward_plan(s).flops == 2 * product);
  CHECK(attention_forward_plan(s).bytes == 4 * column + number);
  CHECK(attention_backward_short_plan(s).flops == 5 * product);
  CHECK(attention_backward_short_plan(s).bytes == 8 * column + number);
  CHECK(attention_backward_keys_plan(s).flops + attention_backward_queries_plan(s).flops ==
        7 * product);
}

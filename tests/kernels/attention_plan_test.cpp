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
      CHECK(attention_backward_f32_plan(s).empty());
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
        if (type == DType::f32) {
          plans.push_back(attention_backward_f32_plan(s));
        } else if (attention_backward_is_short(s)) {
          plans.push_back(attention_backward_short_plan(s));
        } else {
          plans.push_back(attention_backward_keys_plan(s));
          plans.push_back(attention_backward_queries_plan(s));
        }
        for (const KernelPlan& plan : plans) {
          INFO(plan.name << ", " << name_of(type) << ", " << longest << " rows of " << width);
          CHECK(plan.grid[0] % (s.sequences * s.heads) == 0);
          CHECK(plan.shared_bytes <= kA100);
          CHECK(plan.block % 32 == 0);
          CHECK(plan.block <= 512);
        }
        const int64_t warp_rows = type == DType::f32 ? 8 : 16;
        for (const KernelPlan& plan : plans)
          if (plan.name != std::string("attention_backward_keys_mma"))  // a warp has no rows there
            CHECK(plan.grid[0] / (s.sequences * s.heads) * plan.block / 32 * warp_rows >= longest);
        CHECK(attention_forward_is_short(s) == (longest <= 256));
        CHECK(attention_backward_is_short(s) == (type != DType::f32 && longest <= 256));
      }
}

TEST_CASE("attention's launches: shared memory by the longest sequence of the batch") {
  // Rows of q, and of k and v in chunks of 32.
  const auto bytes = [](int64_t longest, int64_t width) {
    return attention_forward_plan(shape(DType::f32, longest, width)).shared_bytes;
  };
  CHECK(bytes(5, 64) == 4 * 64 * (8 + 2 * 32));
  CHECK(bytes(90, 32) == 4 * 32 * (96 + 2 * 96));
  CHECK(bytes(256, 64) == 4 * 64 * (96 + 2 * 256));
}

TEST_CASE("attention's launches: a small GPU takes the long way where the short one does not fit") {
  AttentionShape s = shape(DType::bf16, 256, 64);
  s.shared_bytes = kSmallGpu;
  CHECK(!attention_backward_is_short(s));
  s.longest = 128;
  CHECK(attention_backward_is_short(s));
  s.type = DType::f32;
  CHECK(attention_forward_is_short(s));
  s.longest = 129;
  CHECK(!attention_forward_is_short(s));
  // What it does instead fits.
  for (const DType type : {DType::f32, DType::bf16})
    for (const int64_t width : {32, 64}) {
      s = shape(type, 256, width);
      s.shared_bytes = kSmallGpu;
      CHECK(attention_forward_plan(s).shared_bytes <= kSmallGpu);
      CHECK(attention_backward_f32_plan(s).shared_bytes <= kSmallGpu);
      CHECK(attention_backward_keys_plan(s).shared_bytes <= kSmallGpu);
      CHECK(attention_backward_queries_plan(s).shared_bytes <= kSmallGpu);
    }
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
  s.type = DType::f32;
  CHECK(attention_forward_plan(s).bytes == 4 * 2 * column + number);
  CHECK(attention_backward_f32_plan(s).flops == 7 * product);
  CHECK(attention_backward_f32_plan(s).bytes == 8 * 2 * column + number);
}

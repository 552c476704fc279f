// What a layer of the encoder costs on a GPU: launches, and the bytes and FLOPs that its kernels
// declare, against closed forms. Two models, of one layer and of two; their difference is a layer.
#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/model/random_model.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

constexpr int64_t kWidth = 24;
const StepDropout kDropout{.hidden = 0.1f, .attention = 0.1f, .seed = 7, .step = 3};
// Equal lengths, for which the declared work of attention is exact.
const std::vector<int32_t> kLengths = {24, 24, 24};
constexpr double kRows = 72, kLength = 24, kHidden = 64, kHeads = 2, kIntermediate = 96;

struct Work {
  double launches = 0, bytes = 0, flops = 0;
};

Work total(const Ops& ops) {
  Work work;
  for (const auto& [kernel, count] : ops.counts()) {
    work.launches += static_cast<double>(count.launches);
    work.bytes += count.bytes;
    work.flops += count.flops;
  }
  return work;
}

struct Passes {
  Work forward, backward;
};

Passes passes(Backend& backend, int64_t layers, DType type) {
  BertConfig config = small_bert(static_cast<int64_t>(kIntermediate));
  config.num_hidden_layers = layers;
  RandomModel model(backend, config, kWidth, 1, type);
  Operands operands(*backend.device);
  const Ragged batch = ragged(kLengths);
  const Sequences sequences = operands.put(batch);
  const BatchLimits limits{batch.tokens(), batch.count(), batch.tokens(), batch.longest};
  Arena arena(*backend.device, model.colbert.arena_bytes(limits, true), "test arena");
  const Tensor d_vectors = operands.zeros(sequences.scored(), kWidth);
  Passes result;
  backend.ops->reset_counts();
  model.colbert.forward(sequences, kDropout, true, arena);
  result.forward = total(*backend.ops);
  backend.ops->reset_counts();
  model.colbert.backward(d_vectors, arena);
  result.backward = total(*backend.ops);
  return result;
}

Work difference(const Work& a, const Work& b) {
  return {a.launches - b.launches, a.bytes - b.bytes, a.flops - b.flops};
}

// Of the products: the weights of a layer, in elements.
constexpr double kWeights = 4 * kHidden * kHidden + 2 * kHidden * kIntermediate;

}  // namespace

TEST_CASE("a layer's launches, bytes and FLOPs on a GPU", "[model][launches]") {
  const double th = kRows * kHidden, ti = kRows * kIntermediate;
  for (Backend& backend : make_backends()) {
    const Passes one = passes(backend, 1, DType::f32), two = passes(backend, 2, DType::f32);
    INFO(backend.name);
    if (backend.name == "cpu") {  // launches nothing
      CHECK(one.forward.launches == 0);
      continue;
    }
    const Work forward = difference(two.forward, one.forward);
    CHECK(forward.launches == 8);
    // Four products; attention reads q, k, v and writes its output; LayerNorm twice reads x and the
    // residual and writes s and y; GELU reads and writes.
    const double products = 8 * th + 2 * ti + kWeights;
    CHECK(forward.bytes == 4 * (products + 4 * th + kRows * kHeads + 8 * th + 2 * ti));
    // q k^T and p v are 2 H FLOPs each for a pair of rows of a sequence.
    const double attention = 2 * kHidden * kRows * kLength;
    CHECK(forward.flops == 2 * kRows * kWeights + 2 * attention);

    const Work backward = difference(two.backward, one.backward);
    // 8 products, attention, 2 LayerNorms, GELU, the addition of a bias gradient, and an output of
    // LayerNorm computed again (the other one is written by the LayerNorm's own backward pass).
    CHECK(backward.launches == 14);
    // Twice the forward products; in attention q k^T and d_out v^T by the owners of keys and of
    // queries, d_q, d_k, d_v.
    CHECK(backward.flops == 4 * kRows * kWeights + 7 * attention);
    const double gradients =
        18 * th + 4 * ti + 3 * kWeights;  // weights once, their gradients twice
    const double recomputed = (2 + 1) * th, norms = 2 * 4 * th, gelu = 4 * ti;
    const double attentions = 8 * th + kRows * kHeads;
    // Rows are summed in blocks of 16 (LayerNorm; their sums in a group) and 32; a block's sum is
    // written and read, the total added to what is there, as is
    // a product's bias gradient.
    const double partial =
        2 * (2 * (5 + 1) + 2) * 3 * kHidden + (2 * 3 + 2) * kIntermediate + 3 * 3 * kHidden;
    CHECK(backward.bytes == 4 * (gradients + recomputed + norms + gelu + attentions + partial));
    for (const DType type : {DType::bf16, DType::f16}) {
      const Passes short_ = passes(backend, 1, type), long_ = passes(backend, 2, type);
      CHECK(difference(long_.forward, short_.forward).launches == 8);
      CHECK(difference(long_.backward, short_.backward).launches == 14);
    }
  }
}

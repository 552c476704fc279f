#include "model/colbert.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/model/counting_ops.h"
#include "tests/model/random_model.h"
#include "tests/reference/compare.h"
#include "tests/reference/message_of.h"
#include "tests/reference/random.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

constexpr int64_t kWidth = 24;
const StepDropout kDropout{.hidden = 0.1f, .attention = 0.1f, .seed = 7, .step = 3};

// Sequence s of a batch as a batch of its own, with its random row and column.
Ragged alone(const Ragged& batch, int64_t s) {
  Ragged r;
  const int32_t begin = batch.offsets[s], end = batch.offsets[s + 1];
  r.token_ids.assign(batch.token_ids.begin() + begin, batch.token_ids.begin() + end);
  r.positions.assign(batch.positions.begin() + begin, batch.positions.begin() + end);
  r.sequence_of.assign(end - begin, 0);
  r.offsets = {0, end - begin};
  r.key_counts = {batch.key_counts[s]};
  r.random_rows = {batch.random_rows[s]};
  r.random_columns = {batch.random_columns[s]};
  for (int32_t i = batch.scored_offsets[s]; i < batch.scored_offsets[s + 1]; ++i)
    r.scored_rows.push_back(batch.scored_rows[i] - begin);
  r.scored_offsets = {0, static_cast<int32_t>(r.scored_rows.size())};
  r.longest = end - begin;
  return r;
}

BatchLimits limits_of(const Ragged& batch) {
  return {batch.tokens(), batch.count(), static_cast<int64_t>(batch.scored_rows.size()),
          batch.longest};
}

std::vector<float> forward(Backend& backend, RandomModel& model, const Ragged& batch,
                           const StepDropout& dropout, bool keep) {
  Operands operands(*backend.device);
  Arena arena(*backend.device, model.colbert.arena_bytes(limits_of(batch), keep), "test arena");
  return operands.get(model.colbert.forward(operands.put(batch), dropout, keep, arena));
}

// Forward and backward of the sum over vectors of fixed random weights times them.
void step(Backend& backend, RandomModel& model, const Ragged& batch, const StepDropout& dropout,
          Arena& arena, Operands& operands) {
  arena.reset();
  const Tensor vectors = model.colbert.forward(operands.put(batch), dropout, true, arena);
  const std::vector<float> weights = random_floats(vectors.size(), 99);
  const Tensor d_vectors = operands.output(vectors.rows(), kWidth);
  backend.device->copy_in(d_vectors, weights.data());
  model.colbert.backward(d_vectors, arena);
}

}  // namespace

TEST_CASE("a sequence has the same vectors alone and in a batch", "[model]") {
  for (Backend& backend : backends()) {
    RandomModel model(backend, small_bert(), kWidth);
    const Ragged batch = mixed_batch();
    const std::vector<float> together = forward(backend, model, batch, kDropout, false);
    for (int64_t s = 0; s < batch.count(); ++s) {
      const std::vector<float> want = forward(backend, model, alone(batch, s), kDropout, false);
      const std::vector<float> got(together.begin() + batch.scored_offsets[s] * kWidth,
                                   together.begin() + batch.scored_offsets[s + 1] * kWidth);
      // Products of other batch sizes add in another order.
      require_close(fmt::format("{} sequence {}", backend.name, s), got, to_double(want), 1e-6, 0,
                    kWidth);
    }
  }
}

TEST_CASE("vectors have length one; dropout changes them, by seed and step", "[model]") {
  for (Backend& backend : backends()) {
    RandomModel model(backend, small_bert(), kWidth);
    const Ragged batch = mixed_batch();
    const std::vector<float> plain = forward(backend, model, batch, {}, false);
    for (size_t row = 0; row < plain.size() / kWidth; ++row) {
      double square = 0;
      for (int64_t j = 0; j < kWidth; ++j) square += std::pow(plain[row * kWidth + j], 2);
      if (std::abs(square - 1) > 1e-6) FAIL("row " << row << " has squared length " << square);
    }
    StepDropout next_step = kDropout, other_seed = kDropout, no_hidden = kDropout,
                no_attention = kDropout;
    next_step.step += 1;
    other_seed.seed += 1;
    no_hidden.hidden = 0;
    no_attention.attention = 0;
    std::vector<std::vector<float>> seen{plain};
    for (const StepDropout& dropout : {kDropout, next_step, other_seed, no_hidden, no_attention}) {
      seen.push_back(forward(backend, model, batch, dropout, false));
      for (size_t i = 0; i + 1 < seen.size(); ++i) CHECK(seen[i] != seen.back());
    }
  }
}

TEST_CASE("inference and training compute the same bits", "[model]") {
  for (Backend& backend : backends())
    for (const int64_t intermediate : {32, 96, 512}) {  // below and above 4 H
      RandomModel model(backend, small_bert(intermediate), kWidth);
      const Ragged batch = mixed_batch();
      require_same_bits(fmt::format("{} I {}", backend.name, intermediate),
                        forward(backend, model, batch, kDropout, false),
                        forward(backend, model, batch, kDropout, true));
    }
}

TEST_CASE("gradients repeat bit for bit, and add up", "[model]") {
  for (Backend& backend : backends()) {
    RandomModel model(backend, small_bert(), kWidth);
    const Ragged batch = mixed_batch();
    Operands operands(*backend.device);
    Arena arena(*backend.device, model.colbert.arena_bytes(limits_of(batch), true), "test arena");
    step(backend, model, batch, kDropout, arena, operands);
    const std::vector<float> once = operands.get(model.parameters.gradients());
    backend.device->zero(model.parameters.gradients());
    step(backend, model, batch, kDropout, arena, operands);
    require_same_bits(backend.name + " again", operands.get(model.parameters.gradients()), once);
    step(backend, model, batch, kDropout, arena, operands);
    std::vector<double> twice = to_double(once);
    double largest = 0;
    for (double& g : twice) largest = std::max(largest, std::abs(g *= 2));
    require_close(backend.name + " twice", operands.get(model.parameters.gradients()), twice,
                  1e-5 * largest);
  }
}

TEST_CASE("batches without rows, and without scored rows, are legal", "[model]") {
  for (Backend& backend : backends()) {
    RandomModel model(backend, small_bert(), kWidth);
    Operands operands(*backend.device);
    Arena arena(*backend.device, 1 << 20, "test arena");
    Ragged unscored = ragged({3, 5});
    unscored.scored_rows.clear();
    unscored.scored_offsets.assign(3, 0);
    for (const Ragged& batch : {ragged({}), ragged({0, 0}), unscored}) {
      CHECK(forward(backend, model, batch, kDropout, false).empty());
      step(backend, model, batch, kDropout, arena, operands);
      for (const float g : operands.get(model.parameters.gradients()))
        if (g != 0) FAIL("a gradient of " << g);
    }
    SUCCEED();
  }
}

TEST_CASE("the arena takes what arena_bytes says, to the byte", "[model]") {
  for (Backend& backend : backends())
    for (const int64_t intermediate : {32, 96, 512}) {
      RandomModel model(backend, small_bert(intermediate), kWidth);
      for (const Ragged& batch : {mixed_batch(), ragged({1}), ragged({}), ragged({37, 40, 11})}) {
        INFO(backend.name << " I " << intermediate << ", " << batch.tokens() << " tokens");
        Operands operands(*backend.device);
        const int64_t keep = model.colbert.arena_bytes(limits_of(batch), true);
        const int64_t infer = model.colbert.arena_bytes(limits_of(batch), false);
        Arena training(*backend.device, keep, "training arena");
        step(backend, model, batch, kDropout, training, operands);
        CHECK(training.peak() == keep);
        Arena inference(*backend.device, infer, "inference arena");
        const Tensor vectors =
            model.colbert.forward(operands.put(batch), kDropout, false, inference);
        CHECK(inference.peak() == infer);
        CHECK(inference.used() == Arena::bytes_of(DType::f32, vectors.size()));
        if (batch.tokens() == 0) continue;
        Arena small(*backend.device, keep - 256, "small arena");
        require_message<Error>([&] { step(backend, model, batch, kDropout, small, operands); },
                               {"small arena is too small"});
      }
    }
}

TEST_CASE("a step allocates nothing after the first", "[model]") {
  for (Backend& backend : backends()) {
    RandomModel model(backend, small_bert(), kWidth);
    Operands operands(*backend.device);
    const Ragged large = mixed_batch();
    const Sequences sequences = operands.put(large), fewer = operands.put(ragged({7, 3}));
    Arena arena(*backend.device, model.colbert.arena_bytes(limits_of(large), true), "test arena");
    const Tensor d_vectors = operands.zeros(sequences.scored(), kWidth);
    int64_t after_first = 0;
    for (int i = 0; i < 4; ++i) {
      const Sequences& batch = i % 2 == 0 ? sequences : fewer;
      arena.reset();
      model.colbert.forward(batch, kDropout, true, arena);
      model.colbert.backward(d_vectors.slice(0, batch.scored()), arena);
      if (i == 0) after_first = backend.device->allocations();
    }
    CHECK(backend.device->allocations() == after_first);
  }
}

TEST_CASE("gradients are final from where the backward pass says, layer by layer", "[model]") {
  for (Backend& backend : backends()) {
    RandomModel model(backend, small_bert(), kWidth);
    Operands operands(*backend.device);
    const Ragged batch = mixed_batch();
    Arena arena(*backend.device, model.colbert.arena_bytes(limits_of(batch), true), "test arena");
    const Tensor vectors = model.colbert.forward(operands.put(batch), kDropout, true, arena);
    const Tensor d_vectors =
        operands.put(random_floats(vectors.size(), 99), vectors.rows(), kWidth);
    std::vector<int64_t> begins;
    std::vector<std::vector<float>> seen;
    model.colbert.backward(d_vectors, arena, [&](int64_t begin) {
      begins.push_back(begin);
      seen.push_back(operands.get(model.parameters.gradients()));
    });
    std::vector<int64_t> expected = {model.parameters.first_of("1_Dense")};
    for (int64_t l = model.config.num_hidden_layers - 1; l >= 0; --l)
      expected.push_back(model.parameters.first_of(fmt::format("encoder.layer.{}.", l)));
    expected.push_back(0);
    CHECK(begins == expected);
    const std::vector<float> last = operands.get(model.parameters.gradients());
    for (size_t i = 0; i < begins.size(); ++i) {
      INFO("from element " << begins[i] << " on, " << backend.name);
      CHECK(std::equal(seen[i].begin() + begins[i], seen[i].end(), last.begin() + begins[i]));
      // And not earlier: what lies before comes later, or the callback would be of no use.
      if (begins[i] > 0) CHECK(!std::equal(seen[i].begin(), seen[i].end(), last.begin()));
    }
  }
}

TEST_CASE("no padded row is computed", "[model]") {
  // Lengths 0 to 40: padded to the longest this would be 6 x 40 rows.
  const Ragged batch = [] {
    Ragged r = ragged({40, 1, 0, 17, 2, 9});
    r.scored_rows.erase(r.scored_rows.begin() + 2);  // a row of the first is not scored
    for (size_t s = 1; s < r.scored_offsets.size(); ++s) --r.scored_offsets[s];
    return r;
  }();
  const double t = 69, scored = 68;
  for (Backend& backend : make_backends()) {
    INFO(backend.name);
    auto counting = std::make_unique<CountingOps>(std::move(backend.ops));
    CountingOps& counts = *counting;
    backend.ops = std::move(counting);
    RandomModel model(backend, small_bert(96), kWidth);
    const double h = 64, i = 96, layers = 2, d = kWidth;
    Operands operands(*backend.device);
    Arena arena(*backend.device, model.colbert.arena_bytes(limits_of(batch), true), "test arena");
    step(backend, model, batch, kDropout, arena, operands);

    CHECK(counts.of("embedding_forward").rows == t);
    CHECK(counts.of("embedding_backward").rows == t);
    CHECK(counts.of("attention_forward").rows == layers * t);
    CHECK(counts.of("attention_backward").rows == layers * t);
    CHECK(counts.of("layer_norm_forward").rows == layers * 2 * t);
    CHECK(counts.of("layer_norm_backward").rows == layers * 2 * t);
    CHECK(counts.of("gelu_forward").rows == layers * t);
    CHECK(counts.of("gelu_backward").rows == layers * t);
    CHECK(counts.of("column sums of gemm").rows == layers * t);  // of the bias of q, k, v
    CHECK(counts.of("normalize_forward").rows == scored);
    CHECK(counts.of("normalize_backward").rows == scored);
    // Three products a weight: the output, the gradient of the input, that of the weight.
    const double weights = layers * (4 * h * h + 2 * h * i);
    CHECK(counts.of("gemm").flops == 3 * 2 * (t * weights + scored * h * d));
  }
}

TEST_CASE("what a model cannot do is refused", "[model]") {
  for (Backend& backend : backends()) {
    RandomModel model(backend, small_bert(), kWidth);
    Operands operands(*backend.device);
    Arena arena(*backend.device, 1 << 22, "test arena");
    require_message<Error>([&] { forward(backend, model, ragged({41}), {}, false); },
                           {"a sequence of 41 tokens", "40 positions"});
    require_message<Error>([&] { model.colbert.backward(operands.zeros(0, kWidth), arena); },
                           {"call forward with keep first"});
    const Ragged batch = ragged({4});
    step(backend, model, batch, {}, arena, operands);
    require_message<Error>([&] { model.colbert.backward(operands.zeros(4, kWidth), arena); },
                           {"once for each backward"});
    require_message<Error>(
        [&] { Colbert(*backend.ops, model.config, kWidth + 1, model.parameters); },
        {"the projection has 24 rows, expected 25"});
  }
}

TEST_CASE("FLOPs of a forward pass, on paper", "[model]") {
  RandomModel model(backends()[0], small_bert(), kWidth);
  // A layer and token: 2 (4 * 64 * 64 + 2 * 64 * 96) = 57,344; a row and key: 4 * 64 = 256; a
  // scored row: 2 * 64 * 24 = 3,072.
  CHECK(model.colbert.forward_flops(1, 0, 0) == 2 * 57344);
  CHECK(model.colbert.forward_flops(0, 1, 0) == 2 * 256);
  CHECK(model.colbert.forward_flops(0, 0, 1) == 3072);
  CHECK(model.colbert.forward_flops(10, 60, 3) == 20 * 57344 + 120 * 256 + 3 * 3072);
}

// The optimizer over the flat parameters of a model: squared norm of the gradients, and AdamW,
// which reads parameter, gradient and both moments and writes all but the gradient, 28 bytes a
// parameter; for 16-bit activations it also writes the parameters in their type.
#include <cmath>
#include <memory>

#include "bench/kernels/operations.h"
#include "tests/reference/adamw.h"

namespace maxim::bench {
namespace {

Case square_sum(const std::string& name, int64_t size) {
  const auto make = [=](Operands& o) -> Problem {
    const Tensor out = o.output(DType::f32, {1}), x = o.random(DType::f32, {size}, 1);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      double sum = 0;
      for (const double v : o.get(x)) sum += v * v;
      return {{"out", out, {sum}}};
    };
    return {.call = [=, &o] { o.ops().square_sum(out, x); }, .expected = expected};
  };
  return {.shape = fmt::format("{} {}", name, size),
          .bytes = 4 * static_cast<double>(size) + 4,
          .make = make};
}

// One group, as without weight decay; a norm far above the limit, so that gradients are scaled.
Case adamw(DType type, const std::string& name, int64_t size) {
  const auto make = [=](Operands& o) -> Problem {
    const auto group =
        std::make_shared<AdamWGroup>(AdamWGroup{.begin = 0, .end = size, .learning_rate = 1e-2f});
    AdamW args{.parameters = o.random(DType::f32, {size}, 1),
               .gradients = o.random(DType::f32, {size}, 2),
               .m = o.filled(DType::f32, {size}, 0),
               .v = o.filled(DType::f32, {size}, 0),
               .square_sums = o.output(DType::f32, {1}),
               .gradient_square_sum = o.output(DType::f32, {1}),
               .counters = o.put(std::vector<int64_t>(2)),
               .groups = group.get(),
               .group_count = 1};
    if (type != DType::f32) args.copy = o.output(type, {size});
    o.ops().square_sum(args.square_sums, args.gradients);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      Operands again(o.ops(), type, memory_budget(o.device()));
      maxim_tests::AdamWState state{again.get(again.random(DType::f32, {size}, 1)),
                                    std::vector<double>(size), std::vector<double>(size)};
      maxim_tests::adamw_step(state, o.get(args.gradients),
                              std::vector<double>(size, group->learning_rate),
                              std::vector<double>(size), {});
      std::vector<Expected> all = {
          {"parameters", args.parameters, state.p}, {"m", args.m, state.m}, {"v", args.v, state.v}};
      if (!args.copy.absent()) all.push_back({"copy", args.copy, state.p});
      return all;
    };
    // `group` is named for the capture: args only points to it.
    return {.call = [&o, args, group] { o.ops().adamw(args); }, .expected = expected};
  };
  const int64_t copy = type == DType::f32 ? 0 : size_of(type);
  return {.shape = fmt::format("{} {}", name, size),
          .bytes = static_cast<double>(size * (28 + copy)),
          .make = make};
}

// Embeddings with their LayerNorm, the layers (four square and two wide matrices, their biases, two
// LayerNorms), the projection. The pooler is not there.
int64_t parameters_of(const Model& m) {
  const int64_t h = m.hidden, i = m.intermediate;
  return (kVocabulary + kPositions + 2 + 2) * h +
         m.layers * (4 * h * h + 2 * h * i + 4 * h + i + h + 4 * h) + kEmbedding * h;
}

}  // namespace

std::vector<Operation> optimizer_operations(const Settings& settings) {
  Operation sums{.name = "square_sum"}, steps{.name = "adamw"};
  for (const int64_t size : {5, 40001}) {
    sums.small.push_back(square_sum("small", size));
    steps.small.push_back(adamw(settings.type, "small", size));
  }
  for (const Model& model : kModels) {
    sums.real.push_back(square_sum(model.name, parameters_of(model)));
    steps.real.push_back(adamw(settings.type, model.name, parameters_of(model)));
  }
  return {sums, steps};
}

}  // namespace maxim::bench

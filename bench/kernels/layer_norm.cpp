// layer_norm forward, backward and again: [T, H], hidden dropout 0.1 as BERT is trained with.
#include "tests/reference/layer_norm.h"

#include "bench/kernels/operations.h"
#include "tests/reference/arithmetic.h"
#include "tests/reference/dropout.h"

namespace maxim::bench {
namespace {

using namespace maxim_tests;

struct Shape {
  std::string name;
  Ragged rows;
  int64_t columns;
  float dropout;
  int64_t tokens() const { return rows.tokens(); }
  std::string text() const {
    return fmt::format("{} T {} H {} p {}", name, tokens(), columns, dropout);
  }
  // `activations` of [T, H], `numbers` of each row, `vectors` of [H].
  double bytes(DType type, int activations, int numbers, int vectors) const {
    const double t = static_cast<double>(tokens()), h = static_cast<double>(columns);
    return t * h * activations * static_cast<double>(size_of(type)) + 4 * t * numbers +
           4 * h * vectors;
  }
};

// Operands of a forward pass.
LayerNormForward forward_arguments(Operands& o, const Shape& shape) {
  const int64_t t = shape.tokens(), h = shape.columns;
  return {.y = o.output(o.type(), {t, h}),
          .s = o.output(o.type(), {t, h}),
          .mean = o.output(DType::f32, {t}),
          .rstd = o.output(DType::f32, {t}),
          .x = o.random(o.type(), {t, h}, 1),
          .residual = o.random(o.type(), {t, h}, 2),
          .gamma = o.random(DType::f32, {h}, 3),
          .beta = o.random(DType::f32, {h}, 4),
          .dropout = dropout_of(shape.dropout)};
}

// y, s, mean, rstd out; x, residual in; gamma, beta.
Case forward(DType type, const Shape& shape) {
  const auto make = [=](Operands& o) -> Problem {
    const LayerNormForward args = forward_arguments(o, shape);
    const Sequences sequences = o.put(shape.rows);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const auto kept = dropout_multipliers(args.dropout, shape.rows, shape.columns);
      const auto s = sum(o.get(args.residual), product(o.get(args.x), kept));
      const LayerNorm want = layer_norm(s, o.get(args.gamma), o.get(args.beta), args.epsilon);
      return {{"s", args.s, s},
              {"mean", args.mean, want.mean},
              {"rstd", args.rstd, want.rstd},
              {"y", args.y, want.y}};
    };
    return {.call = [=, &o] { o.ops().layer_norm_forward(args, sequences); }, .expected = expected};
  };
  return {.shape = shape.text(), .bytes = shape.bytes(type, 4, 2, 2), .make = make};
}

// y out; s, mean, rstd, gamma, beta in.
Case apply(DType type, const Shape& shape) {
  const auto make = [=](Operands& o) -> Problem {
    const LayerNormForward saved = forward_arguments(o, shape);
    o.ops().layer_norm_forward(saved, o.put(shape.rows));
    const Tensor y = o.output(type, {shape.tokens(), shape.columns});
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const LayerNorm want =
          layer_norm(o.get(saved.s), o.get(saved.gamma), o.get(saved.beta), saved.epsilon);
      return {{"y", y, want.y}};
    };
    const auto call = [=, &o] {
      o.ops().layer_norm_apply(y, saved.s, saved.mean, saved.rstd, saved.gamma, saved.beta);
    };
    return {.call = call, .expected = expected};
  };
  return {.shape = shape.text(), .bytes = shape.bytes(type, 2, 2, 2), .make = make};
}

// d_s, d_x out; d_y, s, mean, rstd, gamma in; d_gamma, d_beta, d_bias are read and written.
Case backward(DType type, const Shape& shape) {
  const auto make = [=](Operands& o) -> Problem {
    const LayerNormForward saved = forward_arguments(o, shape);
    const Sequences sequences = o.put(shape.rows);
    o.ops().layer_norm_forward(saved, sequences);
    const int64_t t = shape.tokens(), h = shape.columns;
    const LayerNormBackward args{.d_s = o.output(type, {t, h}),
                                 .d_x = o.output(type, {t, h}),
                                 .d_gamma = o.filled(DType::f32, {h}, kBefore),
                                 .d_beta = o.filled(DType::f32, {h}, kBefore),
                                 .d_bias = o.filled(DType::f32, {h}, kBefore),
                                 .d_y = o.random(type, {t, h}, 5),
                                 .s = saved.s,
                                 .mean = saved.mean,
                                 .rstd = saved.rstd,
                                 .gamma = saved.gamma,
                                 .dropout = saved.dropout};
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const LayerNormGradients g =
          layer_norm_gradients(o.get(args.d_y), o.get(args.s), o.get(args.gamma), saved.epsilon);
      const auto d_x = product(g.d_s, dropout_multipliers(args.dropout, shape.rows, shape.columns));
      const std::vector<double> before(shape.columns, kBefore);
      return {{"d_s", args.d_s, g.d_s},
              {"d_x", args.d_x, d_x},
              {"d_gamma", args.d_gamma, sum(before, g.d_gamma)},
              {"d_beta", args.d_beta, sum(before, g.d_beta)},
              {"d_bias", args.d_bias, sum(before, column_sums(d_x, shape.columns))}};
    };
    return {.call = [=, &o] { o.ops().layer_norm_backward(args, sequences); },
            .expected = expected};
  };
  return {.shape = shape.text(), .bytes = shape.bytes(type, 4, 2, 7), .make = make};
}

}  // namespace

std::vector<Operation> layer_norm_operations(const Settings& settings) {
  const std::vector<Shape> small = {{"small", small_rows(), 384, 0.1f},
                                    {"small", small_rows(), 40, 0}};
  std::vector<Operation> operations;
  const auto add = [&](const char* name, Case (*make)(DType, const Shape&)) {
    Operation operation{.name = name, .precision = settings.type};
    for (const Shape& shape : small) operation.small.push_back(make(settings.type, shape));
    for (const int64_t tokens : settings.tokens)
      for (const Model& model : kModels)
        operation.real.push_back(
            make(settings.type, {model.name, text_rows(tokens), model.hidden, 0.1f}));
    operations.push_back(operation);
  };
  add("layer_norm_forward", forward);
  add("layer_norm_apply", apply);
  add("layer_norm_backward", backward);
  return operations;
}

}  // namespace maxim::bench

// embedding forward, again and backward: word + position + type rows, LayerNorm, dropout, into
// [T, H]. Tables are f32, and count only in the rows that the tokens use.
#include "tests/reference/embedding.h"

#include <set>

#include "bench/kernels/operations.h"
#include "tests/reference/arithmetic.h"
#include "tests/reference/dropout.h"
#include "tests/reference/layer_norm.h"

namespace maxim::bench {
namespace {

using namespace maxim_tests;

struct Shape {
  std::string name;
  Ragged rows;
  int64_t columns, vocabulary;
  float dropout;

  int64_t tokens() const { return rows.tokens(); }
  std::string text() const {
    return fmt::format("{} T {} H {} V {} p {}", name, tokens(), columns, vocabulary, dropout);
  }
  double elements() const { return static_cast<double>(tokens() * columns); }
  // mean and rstd of each row; gamma and beta, or read and written their gradients and gamma
  double norm_bytes(int vectors) const {
    return 8 * static_cast<double>(tokens()) + 4 * static_cast<double>(columns * vectors);
  }
  double indices() const { return 8 * static_cast<double>(tokens()); }
  double table_bytes() const {
    const std::set<int32_t> words(rows.token_ids.begin(), rows.token_ids.end());
    const auto used = static_cast<double>(words.size()) + static_cast<double>(rows.longest) + 1;
    return 4 * used * static_cast<double>(columns);
  }
};

EmbeddingForward forward_arguments(Operands& o, const Shape& shape) {
  const int64_t t = shape.tokens(), h = shape.columns;
  return {.y = o.output(o.type(), {t, h}),
          .s = o.output(o.type(), {t, h}),
          .mean = o.output(DType::f32, {t}),
          .rstd = o.output(DType::f32, {t}),
          .word = o.random(DType::f32, {shape.vocabulary, h}, 1),
          .position = o.random(DType::f32, {kPositions, h}, 2),
          .type = o.random(DType::f32, {2, h}, 3),
          .gamma = o.random(DType::f32, {h}, 4),
          .beta = o.random(DType::f32, {h}, 5),
          .dropout = dropout_of(shape.dropout)};
}

// y, s, mean, rstd out; rows of the tables and their numbers, gamma, beta in.
Case forward(DType type, const Shape& shape) {
  const auto make = [=](Operands& o) -> Problem {
    const EmbeddingForward args = forward_arguments(o, shape);
    const Sequences sequences = o.put(shape.rows);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const auto s = embedding_sum(shape.rows, o.get(args.word), o.get(args.position),
                                   o.get(args.type), shape.columns);
      const LayerNorm want = layer_norm(s, o.get(args.gamma), o.get(args.beta), args.epsilon);
      const auto kept = dropout_multipliers(args.dropout, shape.rows, shape.columns);
      return {{"s", args.s, s},
              {"mean", args.mean, want.mean},
              {"rstd", args.rstd, want.rstd},
              {"y", args.y, product(want.y, kept)}};
    };
    return {.call = [=, &o] { o.ops().embedding_forward(args, sequences); }, .expected = expected};
  };
  return {.shape = shape.text(),
          .bytes = 2 * shape.elements() * static_cast<double>(size_of(type)) + shape.norm_bytes(2) +
                   shape.table_bytes() + shape.indices(),
          .make = make};
}

// y out; s, mean, rstd, gamma, beta in.
Case apply(DType type, const Shape& shape) {
  const auto make = [=](Operands& o) -> Problem {
    EmbeddingForward args = forward_arguments(o, shape);
    const Sequences sequences = o.put(shape.rows);
    o.ops().embedding_forward(args, sequences);
    args.y = o.output(type, {shape.tokens(), shape.columns});
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const LayerNorm want =
          layer_norm(o.get(args.s), o.get(args.gamma), o.get(args.beta), args.epsilon);
      const auto kept = dropout_multipliers(args.dropout, shape.rows, shape.columns);
      return {{"y", args.y, product(want.y, kept)}};
    };
    return {.call = [=, &o] { o.ops().embedding_apply(args, sequences); }, .expected = expected};
  };
  return {.shape = shape.text(),
          .bytes = 2 * shape.elements() * static_cast<double>(size_of(type)) + shape.norm_bytes(2),
          .make = make};
}

// d_y, s, mean, rstd, gamma in; the gradients of used rows, gamma and beta are read and written.
Case backward(DType type, const Shape& shape) {
  const auto make = [=](Operands& o) -> Problem {
    const int64_t t = shape.tokens(), h = shape.columns;
    const EmbeddingForward saved = forward_arguments(o, shape);
    const Sequences sequences = o.put(shape.rows);
    o.ops().embedding_forward(saved, sequences);
    const auto before = [&](int64_t rows) { return o.filled(DType::f32, {rows, h}, kBefore); };
    const EmbeddingBackward args{.d_word = before(shape.vocabulary),
                                 .d_position = before(kPositions),
                                 .d_type = before(2),
                                 .d_gamma = o.filled(DType::f32, {h}, kBefore),
                                 .d_beta = o.filled(DType::f32, {h}, kBefore),
                                 .d_y = o.random(type, {t, h}, 6),
                                 .s = saved.s,
                                 .mean = saved.mean,
                                 .rstd = saved.rstd,
                                 .gamma = saved.gamma,
                                 .dropout = saved.dropout};
    const Tensor d_y = o.random(type, {t, h}, 6);  // args.d_y is destroyed
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const auto kept = dropout_multipliers(args.dropout, shape.rows, h);
      const LayerNormGradients g = layer_norm_gradients(product(o.get(d_y), kept), o.get(args.s),
                                                        o.get(args.gamma), saved.epsilon);
      const auto table = [&](int64_t rows, const std::vector<int32_t>& numbers) {
        std::vector<double> d(rows * h, kBefore);
        add_rows(d, g.d_s, numbers, h);
        return d;
      };
      const std::vector<double> start(h, kBefore);
      return {{"d_word", args.d_word, table(shape.vocabulary, shape.rows.token_ids)},
              {"d_position", args.d_position, table(kPositions, shape.rows.positions)},
              {"d_type", args.d_type, table(2, std::vector<int32_t>(t))},
              {"d_gamma", args.d_gamma, sum(start, g.d_gamma)},
              {"d_beta", args.d_beta, sum(start, g.d_beta)}};
    };
    return {.call = [=, &o] { o.ops().embedding_backward(args, sequences); },
            .expected = expected,
            .restore = [=, &o] { o.device().copy(args.d_y, d_y); }};
  };
  return {.shape = shape.text(),
          .bytes = 2 * shape.elements() * static_cast<double>(size_of(type)) + shape.norm_bytes(5) +
                   2 * shape.table_bytes() + shape.indices(),
          .make = make};
}

}  // namespace

std::vector<Operation> embedding_operations(const Settings& settings) {
  const std::vector<Shape> small = {{"small", small_rows(), 384, 50, 0.1f},
                                    {"small", small_rows(), 40, 50, 0}};
  std::vector<Operation> operations;
  const auto add = [&](const char* name, Case (*make)(DType, const Shape&)) {
    Operation operation{.name = name, .precision = settings.type};
    for (const Shape& shape : small) operation.small.push_back(make(settings.type, shape));
    for (const int64_t tokens : settings.tokens)
      for (const Model& model : kModels)
        operation.real.push_back(
            make(settings.type, {model.name, text_rows(tokens), model.hidden, kVocabulary, 0.1f}));
    operations.push_back(operation);
  };
  add("embedding_forward", forward);
  add("embedding_apply", apply);
  add("embedding_backward", backward);
  return operations;
}

}  // namespace maxim::bench

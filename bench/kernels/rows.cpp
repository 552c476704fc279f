// Row by row: GELU of the feed-forward part [T, I], the bias gradient of QKV [T, 3H], and what is
// done to the token vectors [T, D]: length 1, the scored rows, another float type.
#include <cmath>

#include "bench/kernels/operations.h"
#include "tests/reference/arithmetic.h"
#include "tests/reference/normalize.h"

namespace maxim::bench {
namespace {

using namespace maxim_tests;

struct Shape {
  std::string name;
  int64_t rows, columns;
  std::string text() const { return fmt::format("{} [{}, {}]", name, rows, columns); }
  double elements() const { return static_cast<double>(rows * columns); }
};

double size(DType type) { return static_cast<double>(size_of(type)); }

double gelu(double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_slope(double x) {
  return std::erfc(-x / std::sqrt(2.0)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}
std::vector<double> each(double (*f)(double), std::vector<double> x) {
  for (double& v : x) v = f(v);
  return x;
}

Case gelu_forward(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const Tensor y = o.output(type, {s.rows, s.columns});
    const Tensor h = o.random(type, {s.rows, s.columns}, 1, 4);
    const auto expected = [=, &o] { return std::vector<Expected>{{"y", y, each(gelu, o.get(h))}}; };
    return {.call = [=, &o] { o.ops().gelu_forward(y, h); }, .expected = expected};
  };
  return {.shape = s.text(), .bytes = 2 * s.elements() * size(type), .make = make};
}

// y, d_h out; d_y, h in; d_bias is read and written.
Case gelu_backward(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const Tensor y = o.output(type, {s.rows, s.columns});
    const Tensor d_h = o.output(type, {s.rows, s.columns});
    const Tensor d_bias = o.filled(DType::f32, {s.columns}, kBefore);
    const Tensor d_y = o.random(type, {s.rows, s.columns}, 1);
    const Tensor h = o.random(type, {s.rows, s.columns}, 2, 4);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const auto d = product(o.get(d_y), each(gelu_slope, o.get(h)));
      const std::vector<double> before(s.columns, kBefore);
      return {{"y", y, each(gelu, o.get(h))},
              {"d_h", d_h, d},
              {"d_bias", d_bias, sum(before, column_sums(d, s.columns))}};
    };
    return {.call = [=, &o] { o.ops().gelu_backward(y, d_h, d_bias, d_y, h); },
            .expected = expected};
  };
  return {.shape = s.text(),
          .bytes = 4 * s.elements() * size(type) + 8 * static_cast<double>(s.columns),
          .make = make};
}

Case add_column_sums(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const Tensor out = o.filled(DType::f32, {s.columns}, kBefore);
    const Tensor x = o.random(type, {s.rows, s.columns}, 1);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const std::vector<double> before(s.columns, kBefore);
      return {{"out", out, sum(before, column_sums(o.get(x), s.columns))}};
    };
    return {.call = [=, &o] { o.ops().add_column_sums(out, x); }, .expected = expected};
  };
  return {.shape = s.text(),
          .bytes = s.elements() * size(type) + 8 * static_cast<double>(s.columns),
          .make = make};
}

Case normalize_forward(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const Tensor y = o.output(type, {s.rows, s.columns}), norm = o.output(DType::f32, {s.rows});
    const Tensor x = o.random(type, {s.rows, s.columns}, 1);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const Normalized want = normalize(o.get(x), s.columns);
      return {{"y", y, want.y}, {"norm", norm, want.norm}};
    };
    return {.call = [=, &o] { o.ops().normalize_forward(y, norm, x); }, .expected = expected};
  };
  return {.shape = s.text(),
          .bytes = 2 * s.elements() * size(type) + 4 * static_cast<double>(s.rows),
          .make = make};
}

// d_x out; y, norm, and d_y in f32 as the loss gives it, in.
Case normalize_backward(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const Tensor y = o.output(type, {s.rows, s.columns}), norm = o.output(DType::f32, {s.rows});
    const Tensor d_x = o.output(type, {s.rows, s.columns});
    const Tensor x = o.random(type, {s.rows, s.columns}, 1);
    const Tensor d_y = o.random(DType::f32, {s.rows, s.columns}, 2);
    o.ops().normalize_forward(y, norm, x);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      return {{"d_x", d_x, normalize_gradient(o.get(d_y), o.get(x), s.columns)}};
    };
    return {.call = [=, &o] { o.ops().normalize_backward(d_x, d_y, y, norm); },
            .expected = expected};
  };
  return {.shape = s.text(),
          .bytes = s.elements() * (2 * size(type) + 4) + 4 * static_cast<double>(s.rows),
          .make = make};
}

Case convert(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const Tensor y = o.output(type, {s.rows, s.columns});
    const Tensor x = o.random(DType::f32, {s.rows, s.columns}, 1);
    const auto expected = [=, &o] { return std::vector<Expected>{{"y", y, o.get(x)}}; };
    return {.call = [=, &o] { o.ops().convert(y, x); }, .expected = expected};
  };
  return {.shape = s.text(), .bytes = s.elements() * (4 + size(type)), .make = make};
}

// All rows but every eighth: about a text's punctuation, which is not scored.
std::vector<int32_t> scored_rows(int64_t rows) {
  std::vector<int32_t> scored;
  for (int32_t i = 0; i < rows; ++i)
    if (i % 8 != 5) scored.push_back(i);
  return scored;
}

Case gather_rows(DType type, const Shape& s) {
  const std::vector<int32_t> rows = scored_rows(s.rows);
  const auto few = static_cast<int64_t>(rows.size()), columns = s.columns;
  const auto make = [=](Operands& o) -> Problem {
    const Tensor y = o.output(type, {few, columns}), x = o.random(type, {s.rows, columns}, 1);
    const Tensor list = o.put(rows);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const std::vector<double> all = o.get(x);
      std::vector<double> want;
      for (const int32_t r : rows)
        want.insert(want.end(), all.begin() + r * columns, all.begin() + (r + 1) * columns);
      return {{"y", y, want}};
    };
    return {.call = [=, &o] { o.ops().gather_rows(y, x, list); }, .expected = expected};
  };
  return {
      .shape = s.text(),
      .bytes = 2 * static_cast<double>(few * columns) * size(type) + 4 * static_cast<double>(few),
      .make = make};
}

Case scatter_rows(DType type, const Shape& s) {
  const std::vector<int32_t> rows = scored_rows(s.rows);
  const auto few = static_cast<int64_t>(rows.size()), columns = s.columns;
  const auto make = [=](Operands& o) -> Problem {
    const Tensor x = o.output(type, {s.rows, columns}), y = o.random(type, {few, columns}, 1);
    const Tensor list = o.put(rows);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const std::vector<double> part = o.get(y);
      std::vector<double> want(x.size());
      for (int64_t i = 0; i < few; ++i)
        std::copy_n(part.begin() + i * columns, columns, want.begin() + rows[i] * columns);
      return {{"x", x, want}};
    };
    return {.call = [=, &o] { o.ops().scatter_rows(x, y, list); }, .expected = expected};
  };
  return {.shape = s.text(),
          .bytes = (s.elements() + static_cast<double>(few * columns)) * size(type) +
                   4 * static_cast<double>(few),
          .make = make};
}

}  // namespace

std::vector<Operation> row_operations(const Settings& settings) {
  std::vector<Shape> hidden, intermediate, qkv, vectors;
  for (const int64_t tokens : settings.tokens) {
    for (const Model& model : kModels) {
      hidden.push_back({model.name, tokens, model.hidden});
      intermediate.push_back({model.name, tokens, model.intermediate});
      qkv.push_back({fmt::format("{} QKV", model.name), tokens, 3 * model.hidden});
    }
    vectors.push_back({"ColBERT", tokens, kEmbedding});
  }
  std::vector<Operation> operations;
  const auto add = [&](const char* name, DType precision, Case (*make)(DType, const Shape&),
                       const std::vector<Shape>& real) {
    Operation operation{.name = name, .precision = precision};
    for (const Shape& shape : {Shape{"small", 121, 136}, Shape{"small", 33, 24}})
      operation.small.push_back(make(settings.type, shape));
    for (const Shape& shape : real) operation.real.push_back(make(settings.type, shape));
    operations.push_back(operation);
  };
  add("gelu_forward", settings.type, gelu_forward, intermediate);
  add("gelu_backward", settings.type, gelu_backward, intermediate);
  add("add_column_sums", DType::f32, add_column_sums, qkv);
  add("gather_rows", DType::f32, gather_rows, hidden);
  add("scatter_rows", DType::f32, scatter_rows, hidden);
  add("normalize_forward", DType::f32, normalize_forward, vectors);
  add("normalize_backward", settings.type, normalize_backward, vectors);
  add("convert", DType::f32, convert, vectors);
  return operations;
}

}  // namespace maxim::bench

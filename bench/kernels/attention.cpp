// attention forward and backward over sequences of one length: packed [T, 3H], T as near the batch
// as whole sequences come, every row a key.
//   forward    q k^T and p v: 2 products of 2 d FLOPs a pair of rows and head, 4 S H a row
//   backward   q k^T again, d_out v^T, d_q, d_k, d_v: 5 products
#include "tests/reference/attention.h"

#include <algorithm>

#include "bench/kernels/operations.h"

namespace maxim::bench {
namespace {

using namespace maxim_tests;

struct Shape {
  std::string name;
  Ragged rows;
  int64_t heads, width;  // width of a head
  float dropout;

  int64_t tokens() const { return rows.tokens(); }
  int64_t hidden() const { return heads * width; }
  std::string text() const {
    return fmt::format("{} T {} S {} A {} d {} p {}", name, tokens(), rows.longest, heads, width,
                       dropout);
  }
  // Products of [rows, keys] pairs; `columns` of [T, H] activations and log_sum_exp [T, A].
  double flops(int products) const {
    double pairs = 0;
    for (const int32_t keys : rows.key_counts) pairs += static_cast<double>(keys) * keys;
    return 2.0 * products * pairs * static_cast<double>(hidden());
  }
  double bytes(DType type, int columns) const {
    const double t = static_cast<double>(tokens());
    return t * static_cast<double>(hidden() * columns * size_of(type)) +
           4 * t * static_cast<double>(heads);
  }
};

AttentionForward forward_arguments(Operands& o, const Shape& s) {
  return {.out = o.output(o.type(), {s.tokens(), s.hidden()}),
          .log_sum_exp = o.output(DType::f32, {s.tokens(), s.heads}),
          .qkv = o.random(o.type(), {s.tokens(), 3 * s.hidden()}, 1),
          .heads = s.heads,
          .dropout = dropout_of(s.dropout)};
}

Case forward(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const AttentionForward args = forward_arguments(o, s);
    const Sequences sequences = o.put(s.rows);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const Attention want = attention(o.get(args.qkv), s.rows, s.heads, s.width, args.dropout);
      return {{"out", args.out, want.out}, {"log_sum_exp", args.log_sum_exp, want.log_sum_exp}};
    };
    return {.call = [=, &o] { o.ops().attention_forward(args, sequences); }, .expected = expected};
  };
  return {.shape = s.text(), .bytes = s.bytes(type, 4), .flops = s.flops(2), .make = make};
}

// d_qkv out; d_out, out, qkv, log_sum_exp in.
Case backward(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const AttentionForward saved = forward_arguments(o, s);
    const Sequences sequences = o.put(s.rows);
    o.ops().attention_forward(saved, sequences);
    const AttentionBackward args{.d_qkv = o.output(type, {s.tokens(), 3 * s.hidden()}),
                                 .d_out = o.random(type, {s.tokens(), s.hidden()}, 2),
                                 .out = saved.out,
                                 .log_sum_exp = saved.log_sum_exp,
                                 .qkv = saved.qkv,
                                 .heads = s.heads,
                                 .dropout = saved.dropout};
    const auto expected = [=, &o]() -> std::vector<Expected> {
      return {{"d_qkv", args.d_qkv,
               attention_gradient(o.get(args.d_out), o.get(args.qkv), s.rows, s.heads, s.width,
                                  args.dropout)}};
    };
    return {.call = [=, &o] { o.ops().attention_backward(args, sequences); }, .expected = expected};
  };
  return {.shape = s.text(), .bytes = s.bytes(type, 8), .flops = s.flops(5), .make = make};
}

// Queries (32), passages (180, ColBERT's), PyLate's document_length (300), BERT's limit (512), and
// powers of two between.
constexpr int32_t kLengths[] = {32, 64, 128, 180, 300, 512};

}  // namespace

std::vector<Operation> attention_operations(const Settings& settings) {
  const std::vector<Shape> small = {{"small", small_rows(), 2, 32, 0.1f},
                                    {"small", small_rows(), 2, 64, 0},
                                    {"small", ragged({270, 3}), 1, 64, 0.1f}};
  std::vector<Operation> operations;
  const auto add = [&](const char* name, Case (*make)(DType, const Shape&)) {
    Operation operation{.name = name, .precision = settings.type};
    for (const Shape& shape : small) operation.small.push_back(make(settings.type, shape));
    for (const int64_t tokens : settings.tokens)
      for (const Model& model : kModels)
        for (const int32_t length : kLengths)
          for (const float dropout : {0.1f, 0.0f}) {
            const int64_t count = std::max<int64_t>(1, tokens / length);
            const Ragged rows = ragged(std::vector<int32_t>(count, length));
            operation.real.push_back(make(settings.type, {model.name, rows, model.heads,
                                                          model.hidden / model.heads, dropout}));
          }
    operations.push_back(operation);
  };
  add("attention_forward", forward);
  add("attention_backward", backward);
  return operations;
}

}  // namespace maxim::bench

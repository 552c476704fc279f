// gemm in the three forms of a linear layer y = x W^T + bias, W [out, in], over T packed rows:
//   gemm_forward   y [T, out] = x W^T + bias
//   gemm_input     d_x [T, in] = d_y W, or += where the layer's input also goes elsewhere
//   gemm_weight    d_W [out, in] += d_y^T x, f32
#include "tests/reference/gemm.h"

#include "bench/kernels/operations.h"

namespace maxim::bench {
namespace {

struct Layer {
  std::string name;
  int64_t tokens, in, out;
  bool adds = false;  // d_x to what is there: the gradient that goes past the layer
  double t() const { return static_cast<double>(tokens); }
  double weights() const { return static_cast<double>(in * out); }
  std::string shape() const { return fmt::format("{} T {} {} -> {}", name, tokens, in, out); }
  double flops() const { return 2 * t() * weights(); }
};

Problem problem(Operands& o, const GemmArgs& args) {
  const auto expected = [&o, args]() -> std::vector<Expected> {
    const maxim_tests::GemmCase shape{args.c.rows(), args.c.cols(),
                                      args.transpose_a ? args.a.rows() : args.a.cols(),
                                      args.transpose_a, args.transpose_b};
    std::vector<double> start(args.c.size(), args.accumulate ? kBefore : 0);
    if (!args.bias.absent()) {
      const std::vector<double> bias = o.get(args.bias);
      for (size_t i = 0; i < start.size(); ++i) start[i] = bias[i % bias.size()];
    }
    return {{"c", args.c, maxim_tests::gemm(shape, o.get(args.a), o.get(args.b), start)}};
  };
  return {.call = [&o, args] { o.ops().gemm(args); }, .expected = expected};
}

Case forward(DType type, const Layer& l) {
  const double e = static_cast<double>(size_of(type));
  const auto make = [=](Operands& o) {
    return problem(o, {.c = o.output(type, {l.tokens, l.out}),
                       .a = o.random(type, {l.tokens, l.in}, 1),
                       .b = o.random(type, {l.out, l.in}, 2),
                       .transpose_b = true,
                       .bias = o.random(type, {l.out}, 3)});
  };
  const double columns = static_cast<double>(l.in + l.out);
  return {.shape = l.shape(),
          .bytes = e * (l.t() * columns + l.weights() + static_cast<double>(l.out)),
          .flops = l.flops(),
          .make = make};
}

Case input(DType type, const Layer& l) {
  const double e = static_cast<double>(size_of(type));
  const auto make = [=](Operands& o) {
    return problem(o, {.c = o.filled(type, {l.tokens, l.in}, kBefore),
                       .a = o.random(type, {l.tokens, l.out}, 1),
                       .b = o.random(type, {l.out, l.in}, 2),
                       .accumulate = l.adds});
  };
  const double columns = static_cast<double>(l.out + l.in * (l.adds ? 2 : 1));
  return {.shape = l.shape() + (l.adds ? " +=" : ""),
          .bytes = e * (l.t() * columns + l.weights()),
          .flops = l.flops(),
          .make = make};
}

Case weight(DType type, const Layer& l) {
  const double e = static_cast<double>(size_of(type));
  const auto make = [=](Operands& o) {
    return problem(o, {.c = o.filled(DType::f32, {l.out, l.in}, kBefore),
                       .a = o.random(type, {l.tokens, l.out}, 1),
                       .b = o.random(type, {l.tokens, l.in}, 2),
                       .transpose_a = true,
                       .accumulate = true});
  };
  return {.shape = l.shape(),
          .bytes = e * l.t() * static_cast<double>(l.in + l.out) + 2 * 4 * l.weights(),
          .flops = l.flops(),
          .make = make};
}

// A transformer layer's four: q, k and v at once, attention's output, and the feed-forward pair.
std::vector<Layer> layers_of(const Model& model, int64_t tokens) {
  const int64_t h = model.hidden, i = model.intermediate;
  const auto name = [&](const char* part) { return fmt::format("{} {}", model.name, part); };
  return {{name("QKV"), tokens, h, 3 * h, true},
          {name("output"), tokens, h, h},
          {name("up"), tokens, h, i, true},
          {name("down"), tokens, i, h}};
}

}  // namespace

std::vector<Operation> gemm_operations(const Settings& settings) {
  const DType type = settings.type;
  // 8 numbers are the 16 bytes that cuBLASLt wants 16-bit rows to be multiples of.
  const std::vector<Layer> small = {{"small", 121, 72, 200}, {"small", 33, 128, 64, true}};
  std::vector<Operation> operations;
  const auto add = [&](const char* name, Case (*make)(DType, const Layer&)) {
    Operation operation{.name = name};
    for (const Layer& layer : small) operation.small.push_back(make(type, layer));
    for (const int64_t tokens : settings.tokens)
      for (const Model& model : kModels)
        for (const Layer& layer : layers_of(model, tokens))
          operation.real.push_back(make(type, layer));
    operations.push_back(operation);
  };
  add("gemm_forward", forward);
  add("gemm_input", input);
  add("gemm_weight", weight);
  return operations;
}

}  // namespace maxim::bench

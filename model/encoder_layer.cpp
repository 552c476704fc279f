#include "model/encoder_layer.h"

namespace maxim {
namespace {

std::string layer_name(int64_t index, const char* part) {
  return fmt::format("encoder.layer.{}.{}", index, part);
}

// d_x = d_y W, or d_x += d_y W.
void multiply_back(Ops& ops, const Tensor& d_x, const Tensor& d_y, const Tensor& weight,
                   bool accumulate) {
  ops.gemm({.c = d_x, .a = d_y, .b = weight, .accumulate = accumulate});
}

// A [T, columns] matrix in the memory of a wider one, behind `skip` * T elements.
Tensor part_of(const Tensor& wide, int64_t skip, int64_t columns) {
  const int64_t rows = wide.rows();
  return wide.reshape(wide.size(), 1)
      .slice(skip * rows, (skip + columns) * rows)
      .reshape(rows, columns);
}

}  // namespace

LayerNormWeights::LayerNormWeights(const Parameters& parameters, const std::string& name)
    : gamma(parameters.value(name + ".weight")), beta(parameters.value(name + ".bias")) {
  if (parameters.gradients().absent()) return;
  d_gamma = parameters.gradient(name + ".weight");
  d_beta = parameters.gradient(name + ".bias");
}

Tensor LayerScratch::part(int64_t skip, int64_t columns) const {
  return part_of(wide, skip, columns);
}

EncoderLayer::Linear::Linear(const Parameters& parameters, const std::string& first, int64_t parts)
    : weight(parameters.weight_span(first + ".weight", parts)),
      bias(parameters.weight_span(first + ".bias", parts)) {
  if (parameters.gradients().absent()) return;
  d_weight = parameters.gradient_span(first + ".weight", parts);
  d_bias = parameters.gradient_span(first + ".bias", parts);
}

EncoderLayer::EncoderLayer(Ops& ops, const BertConfig& config, const Parameters& parameters,
                           int64_t index)
    : ops_(ops),
      hidden_(config.hidden_size),
      heads_(config.num_attention_heads),
      intermediate_(config.intermediate_size),
      epsilon_(config.layer_norm_eps),
      qkv_(parameters, layer_name(index, "attention.self.query"), 3),
      output_(parameters, layer_name(index, "attention.output.dense"), 1),
      up_(parameters, layer_name(index, "intermediate.dense"), 1),
      down_(parameters, layer_name(index, "output.dense"), 1),
      attention_norm_(parameters, layer_name(index, "attention.output.LayerNorm")),
      output_norm_(parameters, layer_name(index, "output.LayerNorm")) {}

void EncoderLayer::apply(const Tensor& y, const Linear& linear, const Tensor& x) const {
  ops_.gemm({.c = y, .a = x, .b = linear.weight, .transpose_b = true, .bias = linear.bias});
}

void EncoderLayer::add_weight_gradient(const Linear& linear, const Tensor& d_y, const Tensor& x,
                                       const Tensor& d_bias) const {
  ops_.gemm({.c = linear.d_weight,
             .a = d_y,
             .b = x,
             .transpose_a = true,
             .accumulate = true,
             .a_sums = d_bias});
}

void EncoderLayer::normalize(const Tensor& y, const LayerNormWeights& weights,
                             const SavedNorm& saved, const Tensor& x, const Tensor& residual,
                             const Dropout& dropout, const Sequences& sequences) const {
  ops_.layer_norm_forward({.y = y,
                           .s = saved.s,
                           .mean = saved.mean,
                           .rstd = saved.rstd,
                           .x = x,
                           .residual = residual,
                           .gamma = weights.gamma,
                           .beta = weights.beta,
                           .epsilon = epsilon_,
                           .dropout = dropout},
                          sequences);
}

// Turns the gradient of y in scratch.main into that of s, adds those of the weights and of the
// bias of the linear before it, and returns the gradient of that linear's output. `y`, unless
// absent, becomes the LayerNorm's output again.
Tensor EncoderLayer::normalize_backward(const LayerScratch& scratch,
                                        const LayerNormWeights& weights, const SavedNorm& saved,
                                        const Tensor& d_bias, const Dropout& dropout,
                                        const Sequences& sequences, const Tensor& y) const {
  // Without dropout the two gradients are the same numbers, so one is written.
  const Tensor d_x = dropout.active() ? scratch.branch : Tensor();
  ops_.layer_norm_backward({.d_s = scratch.main,
                            .d_x = d_x,
                            .d_gamma = weights.d_gamma,
                            .d_beta = weights.d_beta,
                            .d_bias = d_bias,
                            .d_y = scratch.main,
                            .s = saved.s,
                            .mean = saved.mean,
                            .rstd = saved.rstd,
                            .gamma = weights.gamma,
                            .y = y,
                            .beta = weights.beta,
                            .dropout = dropout},
                           sequences);
  return dropout.active() ? d_x : scratch.main;
}

void EncoderLayer::forward(const SavedLayer& saved, const LayerScratch& scratch,
                           const Sequences& sequences, const LayerDropout& dropout) const {
  const Tensor x = scratch.part(0, hidden_), a = scratch.part(0, intermediate_);
  const Tensor &y1 = scratch.main, &branch = scratch.branch;
  apply(saved.qkv, qkv_, x);
  ops_.attention_forward({.out = saved.attention,
                          .log_sum_exp = saved.log_sum_exp,
                          .qkv = saved.qkv,
                          .heads = heads_,
                          .dropout = dropout.attention},
                         sequences);
  apply(branch, output_, saved.attention);
  normalize(y1, attention_norm_, saved.attention_norm, branch, x, dropout.attention_output,
            sequences);
  apply(saved.h, up_, y1);
  ops_.gelu_forward(a, saved.h);
  apply(branch, down_, a);
  normalize(x, output_norm_, saved.output_norm, branch, y1, dropout.output, sequences);
}

void EncoderLayer::backward_feed_forward(const SavedLayer& saved, const LayerScratch& scratch,
                                         const Sequences& sequences, const Dropout& dropout) const {
  const Tensor& a = saved.h;  // takes the place of h
  const Tensor d_h = scratch.part(0, intermediate_);
  const Tensor d_f = normalize_backward(scratch, output_norm_, saved.output_norm, down_.d_bias,
                                        dropout, sequences, Tensor());
  multiply_back(ops_, d_h, d_f, down_.weight, false);
  ops_.gelu_backward(a, d_h, up_.d_bias, d_h, saved.h);
  add_weight_gradient(down_, d_f, a);
  multiply_back(ops_, scratch.main, d_h, up_.weight, true);
}

void EncoderLayer::backward(const SavedLayer& saved, const LayerScratch& scratch,
                            const Sequences& sequences, const LayerDropout& dropout,
                            const std::function<void(const Tensor&)>& recompute_input) const {
  backward_feed_forward(saved, scratch, sequences, dropout.output);
  // The place of a, which is not needed any more; or what is free behind a narrower d_h.
  const Tensor d_h = scratch.part(0, intermediate_);
  const Tensor y1 = intermediate_ >= hidden_ ? part_of(saved.h, 0, hidden_)
                                             : scratch.part(intermediate_, hidden_);
  const Tensor d_o = normalize_backward(scratch, attention_norm_, saved.attention_norm,
                                        output_.d_bias, dropout.attention_output, sequences, y1);
  add_weight_gradient(up_, d_h, y1);
  const Tensor d_attention = scratch.part(0, hidden_);  // over d_h
  const Tensor d_qkv = scratch.part(hidden_, 3 * hidden_);
  add_weight_gradient(output_, d_o, saved.attention);
  multiply_back(ops_, d_attention, d_o, output_.weight, false);
  ops_.attention_backward({.d_qkv = d_qkv,
                           .d_out = d_attention,
                           .out = saved.attention,
                           .log_sum_exp = saved.log_sum_exp,
                           .qkv = saved.qkv,
                           .heads = heads_,
                           .dropout = dropout.attention},
                          sequences);
  const Tensor& x = scratch.branch;  // d_o is not needed any more
  recompute_input(x);
  add_weight_gradient(qkv_, d_qkv, x, qkv_.d_bias);
  multiply_back(ops_, scratch.main, d_qkv, qkv_.weight, true);
}

void EncoderLayer::recompute_output(const Tensor& y, const SavedLayer& saved) const {
  const SavedNorm& norm = saved.output_norm;
  ops_.layer_norm_apply(y, norm.s, norm.mean, norm.rstd, output_norm_.gamma, output_norm_.beta);
}

}  // namespace maxim

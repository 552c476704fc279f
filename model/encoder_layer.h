// One layer of BERT's encoder, forward and backward. It maps x [T, H] to y2 [T, H]:
//
//   q | k | v = x Wqkv^T + bqkv           out = attention(q, k, v)
//   s1 = x + dropout(out Wo^T + bo)       y1 = LayerNorm(s1)
//   h  = y1 W1^T + b1,  a = gelu(h)       s2 = y1 + dropout(a W2^T + b2),  y2 = LayerNorm(s2)
//
// The backward pass reads SavedLayer: in floats a token, s1 and s2 (H each), q | k | v (3H), out
// (H), h (I), log-sum-exp (A) and four row statistics; with I = 4H about 10 H. It computes y1, a
// and the dropout masks again, and has x computed again by whoever made it. The order:
//
//   d_s2, d_f = LayerNorm'(d_y2)      d_a = d_f W2       a, d_h = gelu'(h, d_a)
//   d_W2 += d_f^T a                   d_W1 += d_h^T y1   d_y1 = d_s2 + d_h W1
//   d_s1, d_o = LayerNorm'(d_y1)      d_Wo += d_o^T out  d_qkv = attention'(d_o Wo)
//   d_Wqkv += d_qkv^T x               d_x = d_s1 + d_qkv Wqkv
//
// FLOPs a token: 2 (4 H^2 + 2 H I) forward and twice that backward, and 4 H a key forward for the
// attention.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/ops.h"
#include "model/bert_config.h"
#include "model/parameters.h"

namespace maxim {

struct LayerNormWeights {
  Tensor gamma, beta, d_gamma, d_beta;
  LayerNormWeights(const Parameters& parameters, const std::string& name);
};

// What LayerNorm leaves for its backward pass.
struct SavedNorm {
  Tensor s;           // [T, H]
  Tensor mean, rstd;  // [T]
};

struct SavedLayer {
  Tensor qkv, attention, log_sum_exp, h;  // [T, 3H], [T, H], [T, A], [T, I]
  SavedNorm attention_norm, output_norm;
};

struct LayerDropout {
  Dropout attention, attention_output, output;
};

// Working memory of both passes, 6 H floats a token when I = 4H. Forward: a layer reads x from
// the first T * H elements of `wide` and leaves y2 there. Backward: it reads d_y2 from `main` and
// leaves d_x there.
struct LayerScratch {
  Tensor wide;          // [T, max(I, 4H)]
  Tensor main, branch;  // [T, H]

  // A [T, columns] matrix in `wide`, behind `skip` * T elements.
  Tensor part(int64_t skip, int64_t columns) const;
};

class EncoderLayer {
 public:
  EncoderLayer(Ops& ops, const BertConfig& config, const Parameters& parameters, int64_t index);

  // `saved` may lie in `scratch`: see Encoder. Fills `saved`.
  void forward(const SavedLayer& saved, const LayerScratch& scratch, const Sequences& sequences,
               const LayerDropout& dropout) const;

  // Destroys saved.h. `recompute_input` writes x into the tensor it is given.
  void backward(const SavedLayer& saved, const LayerScratch& scratch, const Sequences& sequences,
                const LayerDropout& dropout,
                const std::function<void(const Tensor&)>& recompute_input) const;

  // y2 again, from what was saved.
  void recompute_output(const Tensor& y, const SavedLayer& saved) const;

 private:
  struct Linear {
    Tensor weight, bias, d_weight, d_bias;  // weight [out, in]
    // `parts` adjacent parameters from "<prefix><first>.weight" and ".bias" as one.
    Linear(const Parameters& parameters, const std::string& first, int64_t parts);
  };

  void apply(const Tensor& y, const Linear& linear, const Tensor& x) const;
  void add_weight_gradient(const Linear& linear, const Tensor& d_y, const Tensor& x,
                           const Tensor& d_bias = {}) const;
  void normalize(const Tensor& y, const LayerNormWeights& weights, const SavedNorm& saved,
                 const Tensor& x, const Tensor& residual, const Dropout& dropout,
                 const Sequences& sequences) const;
  Tensor normalize_backward(const LayerScratch& scratch, const LayerNormWeights& weights,
                            const SavedNorm& saved, const Tensor& d_bias, const Dropout& dropout,
                            const Sequences& sequences, const Tensor& y) const;
  void backward_feed_forward(const SavedLayer& saved, const LayerScratch& scratch,
                             const Sequences& sequences, const Dropout& dropout) const;

  Ops& ops_;
  int64_t hidden_, heads_, intermediate_;
  float epsilon_;
  Linear qkv_, output_, up_, down_;
  LayerNormWeights attention_norm_, output_norm_;
};

}  // namespace maxim

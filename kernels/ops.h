// kernels: THE list of numeric operations of the trainer. `Ops` declares them; kernels/cpu and
// kernels/cuda implement them, one file an operation, same file names. kernels may include runtime
// only.
//
// Conventions. Tensors are row-major views of device memory. T packed rows (tokens), S sequences,
// H hidden, A heads, d = H / A head dimension (32 or 64), I intermediate, D embedding width,
// Nq / Nd queries / documents, Tq / Td their scored tokens. Gradients are `d_` + name. An
// operation writes all of its outputs unless it says "+=". Rows are packed: no operation
// ever reads or writes a padded row, and zero rows are legal everywhere. Every reduction has a
// fixed order, so equal inputs give equal bits. Outputs may not alias inputs unless it is said.
//
// Floats. Activations, their gradients, token vectors, and the weights and biases of matrix
// products are of one type in a call: f32, or on a GPU bf16 or f16. All else is f32: LayerNorm's
// gamma and beta, embedding tables, means, deviations, log-sum-exps, norms, scores, gradients of
// token vectors and of weights, the optimizer's state. Sums are f32.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/device.h"
#include "runtime/philox.h"
#include "runtime/tensor.h"

namespace maxim {

// S sequences laid end to end in T rows. Views of device memory.
struct Sequences {
  Tensor token_ids;    // i32 [T]
  Tensor positions;    // i32 [T]    position within its own sequence, 0..
  Tensor sequence_of;  // i32 [T]    sequence of each row
  Tensor offsets;      // i32 [S+1]  rows of sequence s: [offsets[s], offsets[s+1])
  Tensor key_counts;  // i32 [S]    the first key_counts[s] rows of s are keys; query expansion rows
                      //            attend but are not attended to
  Tensor random_rows;     // u32 [S]    row of the step's global batch, for dropout
  Tensor random_columns;  // u32 [S] text column of that row (0 query, 1 positive, 2… negatives)
  Tensor scored_rows;     // i32 [T'] rows that take part in scoring, ascending
  Tensor scored_offsets;  // i32 [S+1] scored rows of s: scored_rows[scored_offsets[s] …)
  int64_t longest = 0;    // rows of the longest sequence
  int64_t tokens() const { return token_ids.rows(); }
  int64_t count() const { return key_counts.rows(); }
  int64_t scored() const { return scored_rows.rows(); }
};

// Where and how dropout acts. An element is kept when its 16 random bits are >= round(p * 65536),
// and then multiplied by 65536 / (65536 - round(p * 65536)); see kernels/dropout.h for the counter.
struct Dropout {
  float probability = 0;
  uint64_t seed = 0;
  uint32_t step = 0;  // optimizer step
  uint32_t site = 0;  // which dropout layer of the model, < 65536
  bool active() const { return probability > 0; }
};

struct GemmArgs {
  Tensor c;  // [M, N]
  Tensor a;  // [M, K], or [K, M] when transpose_a
  Tensor b;  // [K, N], or [N, K] when transpose_b
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // c += instead of c =
  Tensor bias = {};         // [N] or absent: added to every row
  Tensor a_sums = {};       // f32 [M] += or absent: column sums of a transposed a, as [K, M]. Where
                            // c is the gradient of a weight, they are that of its bias
};

struct LayerNormForward {
  Tensor y;            // [T, H] out: gamma * (s - mean) * rstd + beta
  Tensor s;            // [T, H] out: residual + dropout(x), saved for the backward pass
  Tensor mean, rstd;   // [T]    out: of each row of s; rstd = 1 / sqrt(variance + epsilon)
  Tensor x;            // [T, H] in
  Tensor residual;     // [T, H] in
  Tensor gamma, beta;  // [H]
  float epsilon = 1e-12f;
  Dropout dropout = {};
};

struct LayerNormBackward {
  Tensor d_s;              // [T, H] out: gradient of s (and so of the residual); may alias d_y
  Tensor d_x = {};         // [T, H] out: dropout mask applied to d_s; absent: not wanted
  Tensor d_gamma, d_beta;  // [H] +=
  Tensor d_bias = {};  // [H] += column sums of d_x (the bias of the linear that made x); or absent
  Tensor d_y;          // [T, H] in
  Tensor s, mean, rstd;  // saved by the forward pass
  Tensor gamma;          // [H]
  Tensor y = {};         // [T, H] out: the forward pass's y again, to the bit; absent: not wanted
  Tensor beta = {};      // [H], for y
  Dropout dropout = {};
};

struct EmbeddingForward {
  Tensor y;            // [T, H] out: dropout(LayerNorm(s))
  Tensor s;            // [T, H] out: word + position + type row 0, saved
  Tensor mean, rstd;   // [T] out
  Tensor word;         // [V, H]
  Tensor position;     // [P, H]
  Tensor type;         // [types, H]; row 0 is used
  Tensor gamma, beta;  // [H]
  float epsilon = 1e-12f;
  Dropout dropout = {};
};

struct EmbeddingBackward {
  Tensor d_word, d_position, d_type;  // += ; rows that no token used stay untouched
  Tensor d_gamma, d_beta;             // [H] +=
  Tensor d_y;                         // [T, H] in; destroyed
  Tensor s, mean, rstd;
  Tensor gamma;
  Dropout dropout = {};
};

struct AttentionForward {
  Tensor out;          // [T, H] out: dropout(softmax(q k^T / sqrt(d))) v, heads side by side
  Tensor log_sum_exp;  // [T, A] out: of the scaled scores, saved for the backward pass
  Tensor qkv;          // [T, 3H] in: q | k | v
  int64_t heads = 0;
  Dropout dropout = {};  // of the probabilities
};

struct AttentionBackward {
  Tensor d_qkv;                  // [T, 3H] out; rows that are not keys get zero d_k and d_v
  Tensor d_out;                  // [T, H] in
  Tensor out, log_sum_exp, qkv;  // saved by the forward pass
  int64_t heads = 0;
  Dropout dropout = {};
};

// Token vectors of a set of texts: the vectors of text i are rows [offsets[i], offsets[i+1]).
struct TokenVectors {
  Tensor vectors;       // [tokens, D]
  Tensor offsets;       // i32 [texts+1]
  int64_t longest = 0;  // tokens of the longest text, at most 65,534 (winners have 16 bits)
  int64_t count() const { return offsets.rows() - 1; }
};

struct CrossEntropy {
  Tensor loss;      // [1] += scale * sum over rows of (log-sum-exp_j(score_ij / temperature) -
                    // score_i,t(i) / temperature)
  Tensor d_scores;  // [Nq, Nd] out: d loss / d scores; may alias scores
  Tensor scores;    // [Nq, Nd] in
  Tensor targets;   // i32 [Nq]: the positive's column t(i)
  float temperature = 1;
  float scale = 1;         // 1 / queries of the global step for the mean
  Tensor loss_scale = {};  // see LossScale: d_scores, but not the loss, is multiplied; absent: 1
};

// Dynamic loss scaling (Micikevicius et al. 2018) on the device: f32 [2], the scale and the steps
// since it changed. cross_entropy multiplies by it, adamw divides by it, halves it when the norm is
// not finite, and doubles it after kInterval finite steps in a row, as torch's GradScaler does.
struct LossScale {
  static constexpr float kInitial = 65536, kGrowth = 2, kBackoff = 0.5f;
  static constexpr int kInterval = 2000;

  // What adamw does to `scale_and_steps` after a step whose norm was `finite` or not.
  MAXIM_HOST_DEVICE static void renew(float* scale_and_steps, bool finite) {
    float &scale = scale_and_steps[0], &good_steps = scale_and_steps[1];
    good_steps = finite ? good_steps + 1 : 0;
    if (!finite) scale *= kBackoff;
    if (good_steps == kInterval) {
      scale *= kGrowth;
      good_steps = 0;
    }
  }
};

// One range of the flat parameter buffer with its own rates.
struct AdamWGroup {
  int64_t begin = 0, end = 0;  // elements
  float learning_rate = 0;
  float weight_decay = 0;
  // Element i has its moments at m[i + state_shift] and v[i + state_shift]; a multiple of 4. Not 0
  // where only the moments of this rank's parameters are kept.
  int64_t state_shift = 0;
};

struct AdamW {
  Tensor parameters, gradients;  // f32 [P], P elements each
  Tensor m, v;                   // f32, equal sizes: see AdamWGroup
  Tensor square_sums;          // f32 [n] in: from square_sum; their sum is the squared global norm
  Tensor gradient_square_sum;  // f32 [1] out: that sum, without the loss scale
  Tensor counters;             // i64 [2] in/out: updates applied, updates skipped (norm not finite)
  const AdamWGroup* groups =
      nullptr;  // host memory; ascending, disjoint; elements outside of all are not touched
  int64_t group_count = 0;
  Tensor copy = {};        // bf16 or f16 [P] out: the new parameters rounded, or absent
  Tensor loss_scale = {};  // see LossScale; absent: 1
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float max_grad_norm =
      1;  // gradients are multiplied by min(1, max / (norm + 1e-6)); 0: not clipped
};

// Launches of one kernel, with the least bytes and FLOPs that each needs.
struct KernelCount {
  int64_t launches = 0;
  double bytes = 0, flops = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual Device& device() = 0;
  // Name of the library that multiplies matrices and the kernel it chose, for the start record.
  virtual std::string gemm_library() const = 0;

  // Work by kernel since the last reset. A GPU's backend counts; the CPU's map stays empty.
  const std::map<std::string_view, KernelCount>& counts() const { return counts_; }
  void reset_counts() { counts_.clear(); }

  // c = a b (+ bias), or c += a b.
  virtual void gemm(const GemmArgs& args) = 0;
  // out[j] += sum over rows of x[·, j]
  virtual void add_column_sums(const Tensor& out, const Tensor& x) = 0;

  // y = LayerNorm(residual + dropout(x))
  virtual void layer_norm_forward(const LayerNormForward& args, const Sequences& sequences) = 0;
  virtual void layer_norm_backward(const LayerNormBackward& args, const Sequences& sequences) = 0;
  // y = gamma * (s - mean) * rstd + beta: the output again, from what was saved.
  virtual void layer_norm_apply(const Tensor& y, const Tensor& s, const Tensor& mean,
                                const Tensor& rstd, const Tensor& gamma, const Tensor& beta) = 0;

  virtual void embedding_forward(const EmbeddingForward& args, const Sequences& sequences) = 0;
  virtual void embedding_backward(const EmbeddingBackward& args, const Sequences& sequences) = 0;
  // y = dropout(LayerNorm(s)) of the embeddings again, from what was saved.
  virtual void embedding_apply(const EmbeddingForward& args, const Sequences& sequences) = 0;

  // y = gelu(h), gelu(x) = x/2 (1 + erf(x / sqrt 2)); h [T, I] has its bias already. y may alias h.
  virtual void gelu_forward(const Tensor& y, const Tensor& h) = 0;
  // y = gelu(h); d_h = d_y * gelu'(h); d_bias [I] += column sums of d_h. d_h may alias d_y,
  // and y may alias h.
  virtual void gelu_backward(const Tensor& y, const Tensor& d_h, const Tensor& d_bias,
                             const Tensor& d_y, const Tensor& h) = 0;

  virtual void attention_forward(const AttentionForward& args, const Sequences& sequences) = 0;
  virtual void attention_backward(const AttentionBackward& args, const Sequences& sequences) = 0;

  // y = x in y's float type, rounded to nearest.
  virtual void convert(const Tensor& y, const Tensor& x) = 0;

  // y[i] = x[rows[i]]; rows i32, ascending.
  virtual void gather_rows(const Tensor& y, const Tensor& x, const Tensor& rows) = 0;
  // x = 0, then x[rows[i]] = y[i].
  virtual void scatter_rows(const Tensor& x, const Tensor& y, const Tensor& rows) = 0;

  // y = x / norm with norm [T] = max(|x|, 1e-12) of each row. y may alias x.
  virtual void normalize_forward(const Tensor& y, const Tensor& norm, const Tensor& x) = 0;
  // d_x = (d_y - y (y . d_y)) / norm; d_y / norm for rows whose length was below 1e-12. May alias
  // d_y.
  virtual void normalize_backward(const Tensor& d_x, const Tensor& d_y, const Tensor& y,
                                  const Tensor& norm) = 0;

  // scores[i, j] = sum over tokens s of query i of max over tokens t of document j of q_s . d_t
  // [Nq, Nd]; winners u16 [Tq, Nd] = that t (within its document, the lowest of equals). A document
  // without tokens scores 0 and has winner 65535. `winners` may be absent when no gradient is
  // wanted.
  virtual void maxsim_forward(const Tensor& scores, const Tensor& winners,
                              const TokenVectors& queries, const TokenVectors& documents) = 0;
  // d_queries [Tq, D] = sum over documents j of d_scores[i, j] * d_winner(s, j)
  virtual void maxsim_backward_queries(const Tensor& d_queries, const Tensor& d_scores,
                                       const Tensor& winners, const TokenVectors& queries,
                                       const TokenVectors& documents) = 0;
  // d_documents [Td, D] = sum over (s, j) whose winner it is of d_scores[i, j] * q_s, in ascending
  // s.
  virtual void maxsim_backward_documents(const Tensor& d_documents, const Tensor& d_scores,
                                         const Tensor& winners, const TokenVectors& queries,
                                         const TokenVectors& documents) = 0;

  virtual void cross_entropy(const CrossEntropy& args) = 0;

  // out [1] = sum of squares of x
  virtual void square_sum(const Tensor& out, const Tensor& x) = 0;
  // Decoupled weight decay as torch.optim.AdamW (Loshchilov and Hutter, ICLR 2019), bias correction
  // on. Order: clip, p *= 1 - lr wd, moments, step. A step whose norm is not finite changes nothing
  // but counters[1].
  virtual void adamw(const AdamW& args) = 0;

 protected:
  std::map<std::string_view, KernelCount> counts_;  // names are literals: nothing is allocated
};

std::unique_ptr<Ops> make_cpu_ops(HostDevice& device);

}  // namespace maxim

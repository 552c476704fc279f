// Multi-head attention over packed sequences (Vaswani et al. 2017) in the manner of FlashAttention
// (Dao et al. 2022): the launchers. attention_forward_f32.cu and attention_backward_f32.cu have the
// version with plain FMA, attention_forward_mma.cu and attention_backward_mma.cu the 16-bit one.
//
//   forward    s = q k^T / sqrt(d), p = softmax(s) over the keys, out = (m p) v, m = dropout's 0 or
//              1 / (1 - probability); saved: log_sum_exp of each row of s
//   backward   p = exp(s - log_sum_exp) again; delta = sum over columns of d_out * out
//              d_v = (m p)^T d_out        d_s = p (m (d_out v^T) - delta) / sqrt(d)
//              d_q = d_s k                d_k = d_s^T q
//
// A block is one tile of the rows of one head of one sequence, and owns what it writes. A row
// without keys gets NaN.
#include "kernels/cuda/attention.cuh"

namespace maxim {
namespace {

void check_shapes(const Tensor& out, const Tensor& log_sum_exp, const Tensor& qkv, int64_t heads,
                  const Sequences& sequences) {
  const int64_t tokens = sequences.tokens(), hidden = out.cols();
  MAXIM_CHECK(out.rows() == tokens && qkv.rows() == tokens && qkv.cols() == 3 * hidden &&
                  log_sum_exp.size() == tokens * heads,
              "{} tokens, {} heads: out [{}, {}], qkv [{}, {}], log_sum_exp of {}", tokens, heads,
              out.rows(), hidden, qkv.rows(), qkv.cols(), log_sum_exp.size());
  MAXIM_CHECK(heads > 0 && (hidden == 32 * heads || hidden == 64 * heads),
              "{} columns in {} heads: a head has 32 or 64", hidden, heads);
  MAXIM_CHECK(out.dtype() == qkv.dtype(), "out is {}, qkv {}", name_of(out.dtype()),
              name_of(qkv.dtype()));
  for (const Tensor& x : {out, qkv})  // rows are multiples of 64 bytes, and read 16 at a time
    MAXIM_CHECK(reinterpret_cast<uintptr_t>(x.data()) % 16 == 0,
                "an address that 16 does not divide");
}

}  // namespace

AttentionShape attention_shape(const CudaOps& ops, const Tensor& qkv, int64_t heads,
                               const Sequences& sequences) {
  return {.type = qkv.dtype(),
          .tokens = sequences.tokens(),
          .sequences = sequences.count(),
          .longest = sequences.longest,
          .heads = heads,
          .width = qkv.cols() / (3 * heads),
          .shared_bytes = ops.shared_bytes()};
}

AttentionBatch attention_batch(const Sequences& sequences, int64_t heads, const KernelPlan& plan) {
  const int64_t count = sequences.count() * heads;
  return {.offsets = sequences.offsets.as<int32_t>(),
          .key_counts = sequences.key_counts.as<int32_t>(),
          .positions = sequences.positions.as<int32_t>(),
          .random_rows = sequences.random_rows.as<uint32_t>(),
          .random_columns = sequences.random_columns.as<uint32_t>(),
          .heads = static_cast<int>(heads),
          .tiles = count == 0 ? 0 : static_cast<int>(plan.grid[0] / count)};
}

AttentionDropout attention_dropout(const Dropout& dropout) {
  return {.seed = dropout.seed,
          .step = dropout.step,
          .site = dropout.site,
          .threshold = dropout.active() ? dropout_threshold(dropout.probability) : 0,
          .scale = dropout.active() ? dropout_scale(dropout.probability) : 1};
}

void CudaOps::attention_forward(const AttentionForward& args, const Sequences& sequences) {
  check_shapes(args.out, args.log_sum_exp, args.qkv, args.heads, sequences);
  if (args.qkv.dtype() == DType::f32)
    attention_forward_f32(*this, args, sequences);
  else
    attention_forward_mma(*this, args, sequences);
}

void CudaOps::attention_backward(const AttentionBackward& args, const Sequences& sequences) {
  check_shapes(args.out, args.log_sum_exp, args.qkv, args.heads, sequences);
  check_shapes(args.d_out, args.log_sum_exp, args.d_qkv, args.heads, sequences);
  if (args.qkv.dtype() == DType::f32)
    attention_backward_f32(*this, args, sequences);
  else
    attention_backward_mma(*this, args, sequences);
}

}  // namespace maxim

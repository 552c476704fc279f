#include "tests/model/counting_ops.h"

namespace maxim_tests {

using namespace maxim;

void CountingOps::count(const char* operation, int64_t rows, double flops) {
  Count& count = counts_[operation];
  ++count.calls;
  count.rows += rows;
  count.flops += flops;
}

int64_t CountingOps::calls() const {
  int64_t calls = 0;
  for (const auto& [operation, count] : counts_) calls += count.calls;
  return calls;
}

void CountingOps::gemm(const GemmArgs& args) {
  const int64_t k = args.transpose_a ? args.a.rows() : args.a.cols();
  count("gemm", args.c.rows(), 2.0 * static_cast<double>(args.c.size()) * static_cast<double>(k));
  if (!args.a_sums.absent()) count("column sums of gemm", args.a.rows());
  ops_->gemm(args);
}

void CountingOps::add_column_sums(const Tensor& out, const Tensor& x) {
  count("add_column_sums", x.rows());
  ops_->add_column_sums(out, x);
}

void CountingOps::layer_norm_forward(const LayerNormForward& args, const Sequences& sequences) {
  count("layer_norm_forward", args.x.rows());
  ops_->layer_norm_forward(args, sequences);
}

void CountingOps::layer_norm_backward(const LayerNormBackward& args, const Sequences& sequences) {
  count("layer_norm_backward", args.d_y.rows());
  ops_->layer_norm_backward(args, sequences);
}

void CountingOps::layer_norm_apply(const Tensor& y, const Tensor& s, const Tensor& mean,
                                   const Tensor& rstd, const Tensor& gamma, const Tensor& beta) {
  count("layer_norm_apply", s.rows());
  ops_->layer_norm_apply(y, s, mean, rstd, gamma, beta);
}

void CountingOps::embedding_forward(const EmbeddingForward& args, const Sequences& sequences) {
  count("embedding_forward", args.y.rows());
  ops_->embedding_forward(args, sequences);
}

void CountingOps::embedding_backward(const EmbeddingBackward& args, const Sequences& sequences) {
  count("embedding_backward", args.d_y.rows());
  ops_->embedding_backward(args, sequences);
}

void CountingOps::embedding_apply(const EmbeddingForward& args, const Sequences& sequences) {
  count("embedding_apply", args.y.rows());
  ops_->embedding_apply(args, sequences);
}

void CountingOps::gelu_forward(const Tensor& y, const Tensor& h) {
  count("gelu_forward", h.rows());
  ops_->gelu_forward(y, h);
}

void CountingOps::gelu_backward(const Tensor& y, const Tensor& d_h, const Tensor& d_bias,
                                const Tensor& d_y, const Tensor& h) {
  count("gelu_backward", h.rows());
  ops_->gelu_backward(y, d_h, d_bias, d_y, h);
}

void CountingOps::attention_forward(const AttentionForward& args, const Sequences& sequences) {
  count("attention_forward", args.qkv.rows());
  ops_->attention_forward(args, sequences);
}

void CountingOps::attention_backward(const AttentionBackward& args, const Sequences& sequences) {
  count("attention_backward", args.qkv.rows());
  ops_->attention_backward(args, sequences);
}

void CountingOps::convert(const Tensor& y, const Tensor& x) {
  count("convert", x.rows());
  ops_->convert(y, x);
}

void CountingOps::gather_rows(const Tensor& y, const Tensor& x, const Tensor& rows) {
  count("gather_rows", rows.rows());
  ops_->gather_rows(y, x, rows);
}

void CountingOps::scatter_rows(const Tensor& x, const Tensor& y, const Tensor& rows) {
  count("scatter_rows", rows.rows());
  ops_->scatter_rows(x, y, rows);
}

void CountingOps::normalize_forward(const Tensor& y, const Tensor& norm, const Tensor& x) {
  count("normalize_forward", x.rows());
  ops_->normalize_forward(y, norm, x);
}

void CountingOps::normalize_backward(const Tensor& d_x, const Tensor& d_y, const Tensor& y,
                                     const Tensor& norm) {
  count("normalize_backward", y.rows());
  ops_->normalize_backward(d_x, d_y, y, norm);
}

void CountingOps::maxsim_forward(const Tensor& scores, const Tensor& winners,
                                 const TokenVectors& queries, const TokenVectors& documents) {
  count("maxsim_forward", queries.vectors.rows() + documents.vectors.rows());
  ops_->maxsim_forward(scores, winners, queries, documents);
}

void CountingOps::maxsim_backward_queries(const Tensor& d_queries, const Tensor& d_scores,
                                          const Tensor& winners, const TokenVectors& queries,
                                          const TokenVectors& documents) {
  count("maxsim_backward_queries", d_queries.rows());
  ops_->maxsim_backward_queries(d_queries, d_scores, winners, queries, documents);
}

void CountingOps::maxsim_backward_documents(const Tensor& d_documents, const Tensor& d_scores,
                                            const Tensor& winners, const TokenVectors& queries,
                                            const TokenVectors& documents) {
  count("maxsim_backward_documents", d_documents.rows());
  ops_->maxsim_backward_documents(d_documents, d_scores, winners, queries, documents);
}

void CountingOps::cross_entropy(const CrossEntropy& args) {
  count("cross_entropy", args.scores.rows());
  ops_->cross_entropy(args);
}

void CountingOps::square_sum(const Tensor& out, const Tensor& x) {
  count("square_sum", x.rows());
  ops_->square_sum(out, x);
}

void CountingOps::adamw(const AdamW& args) {
  count("adamw", args.parameters.rows());
  ops_->adamw(args);
}

}  // namespace maxim_tests

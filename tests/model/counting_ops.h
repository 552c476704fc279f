// Operations that count what they are asked to compute, and pass it on: how many rows each sees,
// how many matrix FLOPs, how many calls.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace maxim_tests {

struct Count {
  int64_t calls = 0, rows = 0;
  double flops = 0;  // of gemm: 2 M N K
};

class CountingOps final : public maxim::Ops {
 public:
  explicit CountingOps(std::unique_ptr<maxim::Ops> ops) : ops_(std::move(ops)) {}

  const Count& of(const std::string& operation) { return counts_[operation]; }
  void reset() { counts_.clear(); }
  // Calls of all operations since the last reset.
  int64_t calls() const;

  maxim::Device& device() override { return ops_->device(); }
  std::string gemm_library() const override { return ops_->gemm_library(); }
  void gemm(const maxim::GemmArgs& args) override;
  void add_column_sums(const maxim::Tensor& out, const maxim::Tensor& x) override;
  void layer_norm_forward(const maxim::LayerNormForward& args,
                          const maxim::Sequences& sequences) override;
  void layer_norm_backward(const maxim::LayerNormBackward& args,
                           const maxim::Sequences& sequences) override;
  void layer_norm_apply(const maxim::Tensor& y, const maxim::Tensor& s, const maxim::Tensor& mean,
                        const maxim::Tensor& rstd, const maxim::Tensor& gamma,
                        const maxim::Tensor& beta) override;
  void embedding_forward(const maxim::EmbeddingForward& args,
                         const maxim::Sequences& sequences) override;
  void embedding_backward(const maxim::EmbeddingBackward& args,
                          const maxim::Sequences& sequences) override;
  void embedding_apply(const maxim::EmbeddingForward& args,
                       const maxim::Sequences& sequences) override;
  void gelu_forward(const maxim::Tensor& y, const maxim::Tensor& h) override;
  void gelu_backward(const maxim::Tensor& y, const maxim::Tensor& d_h, const maxim::Tensor& d_bias,
                     const maxim::Tensor& d_y, const maxim::Tensor& h) override;
  void attention_forward(const maxim::AttentionForward& args,
                         const maxim::Sequences& sequences) override;
  void attention_backward(const maxim::AttentionBackward& args,
                          const maxim::Sequences& sequences) override;
  void gather_rows(const maxim::Tensor& y, const maxim::Tensor& x,
                   const maxim::Tensor& rows) override;
  void scatter_rows(const maxim::Tensor& x, const maxim::Tensor& y,
                    const maxim::Tensor& rows) override;
  void normalize_forward(const maxim::Tensor& y, const maxim::Tensor& norm,
                         const maxim::Tensor& x) override;
  void normalize_backward(const maxim::Tensor& d_x, const maxim::Tensor& d_y,
                          const maxim::Tensor& y, const maxim::Tensor& norm) override;
  void maxsim_forward(const maxim::Tensor& scores, const maxim::Tensor& winners,
                      const maxim::TokenVectors& queries,
                      const maxim::TokenVectors& documents) override;
  void maxsim_backward_queries(const maxim::Tensor& d_queries, const maxim::Tensor& d_scores,
                               const maxim::Tensor& winners, const maxim::TokenVectors& queries,
                               const maxim::TokenVectors& documents) override;
  void maxsim_backward_documents(const maxim::Tensor& d_documents, const maxim::Tensor& d_scores,
                                 const maxim::Tensor& winners, const maxim::TokenVectors& queries,
                                 const maxim::TokenVectors& documents) override;
  void cross_entropy(const maxim::CrossEntropy& args) override;
  void square_sum(const maxim::Tensor& out, const maxim::Tensor& x) override;
  void adamw(const maxim::AdamW& args) override;

 private:
  void count(const char* operation, int64_t rows, double flops = 0);

  std::unique_ptr<maxim::Ops> ops_;
  std::map<std::string, Count> counts_;
};

}  // namespace maxim_tests

// The CPU backend: OpenBLAS for matrix products, OpenMP and SIMD loops for all else. Each operation
// stands in the file of its name. Threads split rows (or columns) in fixed parts and partial sums
// are added in a fixed order, so the same number of threads gives the same bits.
#pragma once

#include "kernels/scratch.h"
#include "kernels/ops.h"

namespace maxim {

class CpuOps final : public Ops {
 public:
  explicit CpuOps(HostDevice& device);
  ~CpuOps() override;

  Device& device() override { return device_; }
  std::string gemm_library() const override;

  void gemm(const GemmArgs& args) override;
  void add_column_sums(const Tensor& out, const Tensor& x) override;
  void layer_norm_forward(const LayerNormForward& args, const Sequences& sequences) override;
  void layer_norm_backward(const LayerNormBackward& args, const Sequences& sequences) override;
  void layer_norm_apply(const Tensor& y, const Tensor& s, const Tensor& mean, const Tensor& rstd,
                        const Tensor& gamma, const Tensor& beta) override;
  void embedding_forward(const EmbeddingForward& args, const Sequences& sequences) override;
  void embedding_backward(const EmbeddingBackward& args, const Sequences& sequences) override;
  void embedding_apply(const EmbeddingForward& args, const Sequences& sequences) override;
  void gelu_forward(const Tensor& y, const Tensor& h) override;
  void gelu_backward(const Tensor& y, const Tensor& d_h, const Tensor& d_bias, const Tensor& d_y,
                     const Tensor& h) override;
  void attention_forward(const AttentionForward& args, const Sequences& sequences) override;
  void attention_backward(const AttentionBackward& args, const Sequences& sequences) override;
  void convert(const Tensor& y, const Tensor& x) override;
  void gather_rows(const Tensor& y, const Tensor& x, const Tensor& rows) override;
  void scatter_rows(const Tensor& x, const Tensor& y, const Tensor& rows) override;
  void normalize_forward(const Tensor& y, const Tensor& norm, const Tensor& x) override;
  void normalize_backward(const Tensor& d_x, const Tensor& d_y, const Tensor& y,
                          const Tensor& norm) override;
  void maxsim_forward(const Tensor& scores, const Tensor& winners, const TokenVectors& queries,
                      const TokenVectors& documents) override;
  void maxsim_backward_queries(const Tensor& d_queries, const Tensor& d_scores,
                               const Tensor& winners, const TokenVectors& queries,
                               const TokenVectors& documents) override;
  void maxsim_backward_documents(const Tensor& d_documents, const Tensor& d_scores,
                                 const Tensor& winners, const TokenVectors& queries,
                                 const TokenVectors& documents) override;
  void cross_entropy(const CrossEntropy& args) override;
  void square_sum(const Tensor& out, const Tensor& x) override;
  void adamw(const AdamW& args) override;

 private:
  HostDevice& device_;
  Scratch partial_sums_;     // of row blocks: at most 64 times the columns summed
  Scratch sums_{device_};    // losses of rows, sums of squares of blocks
  Scratch panels_{device_};  // attention, MaxSim: the panels of each thread
};

}  // namespace maxim

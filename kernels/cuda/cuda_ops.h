// The CUDA backend: cuBLASLt for matrix products, own kernels for all else, one stream. Each
// operation stands in the .cu file of its name. No floating-point atomics and no reduction whose
// order depends on timing, so equal inputs give equal bits. No operation waits for the device, and
// none allocates once its scratch has grown to the batch's size.
//
// Element types. Activations (and their gradients) are f32, bf16 or f16, one type in a call, told
// by the tensors; so are the weights of matrix products. LayerNorm's gamma and beta, means,
// deviations, log-sum-exps, norms, scores, gradients of token vectors and all gradients of weights
// are f32.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/plan.h"
#include "kernels/ops.h"
#include "kernels/scratch.h"
#include "runtime/cuda_device.h"

namespace maxim {

class CublasLt;  // kernels/cuda/cublas_lt.h

class CudaOps final : public Ops {
 public:
  // `tf32`: f32 products may round their operands to TF32 (10 bits of mantissa).
  CudaOps(CudaDevice& device, bool tf32);
  ~CudaOps() override;

  Device& device() override { return device_; }
  std::string gemm_library() const override;
  cudaStream_t stream() const { return device_.stream(); }
  int multiprocessors() const { return device_.multiprocessors(); }
  int64_t shared_bytes() const { return device_.shared_bytes(); }

  // Memory of this backend between kernels of one operation; see Scratch.
  Scratch& scratch() { return scratch_; }

  // Counters by which a grid finds its last block: 0 between kernels.
  unsigned* tickets(int64_t count);

  void count(const KernelPlan& plan);

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
  void gemm_over_nothing(const GemmArgs& args);

  CudaDevice& device_;
  Scratch scratch_{device_};
  DeviceTensor tickets_;
  std::unique_ptr<CublasLt> cublas_lt_;
};

}  // namespace maxim

// comm: ranks, launching, collectives. comm may include runtime only (and kernels/ops.h in
// gradient_reducer). Nothing outside comm calls MPI or NCCL.
//
// Communicator: collectives on device memory. Every rank calls the same ones in the same order.
// Sums are taken in rank order, so the same world size gives the same bits. The single process has
// SoloCommunicator, whose collectives copy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace maxim {

enum class Reduction { sum, max };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `parts[r]` rows of rank r: all[r's rows] = rank r's `mine`; `mine` has parts[rank()] rows.
  virtual void all_gather(const Tensor& all, const Tensor& mine,
                          const std::vector<int64_t>& parts) = 0;
  // The reverse: mine = sum over ranks of their `all` at this rank's rows.
  virtual void reduce_scatter(const Tensor& mine, const Tensor& all,
                              const std::vector<int64_t>& parts) = 0;
  virtual void all_reduce(const Tensor& tensor,
                          Reduction reduction) = 0;  // f32, f64-free; in place
  virtual void broadcast(const Tensor& tensor, int root) = 0;
  virtual void barrier() = 0;

  // Small host messages, for start-up, metrics and agreement.
  virtual std::vector<int64_t> all_gather_host(int64_t value) = 0;
  virtual std::vector<std::string> all_gather_text(const std::string& text) = 0;
  virtual std::vector<double> sum_host(const std::vector<double>& values) = 0;  // in rank order

  // Payload bytes this rank has sent so far, and calls, for the counters.
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t calls() const { return calls_; }

  // Runs `work` on every rank and agrees on the outcome: when it throws anywhere, every rank throws
  // the same error (of the lowest failing rank, its rank named when the others did not fail alike).
  void checked(const std::function<void()>& work);

 protected:
  int64_t bytes_sent_ = 0;
  int64_t calls_ = 0;
};

}  // namespace maxim

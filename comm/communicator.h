// comm: ranks, launching, collectives. comm may include runtime only (and kernels/ops.h in
// gradient_reducer). Nothing outside comm calls MPI or NCCL.
//
// Communicator: collectives on device memory. Every rank calls the same ones in the same order.
// Sums are taken in rank order, so the same world size gives the same bits. The single process has
// SoloCommunicator, whose collectives copy. Messenger: texts alone, all that starting needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace maxim {

enum class Reduction { sum, max };

class Messenger {
 public:
  virtual ~Messenger() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The texts of all ranks, by rank. Collective, as what follows.
  virtual std::vector<std::string> all_gather_text(const std::string& text) = 0;

  // Runs `work` on every rank and agrees on the outcome: when it throws anywhere, every rank throws
  // the same error: message and type (InputError or Error) of the lowest failing rank, prefixed
  // "rank R on HOST: " unless all failed alike. `work` calls no collectives of its own: a rank that
  // failed before one would leave the others waiting there.
  void checked(const std::function<void()>& work);

  // Agreement on what the ranks were given: `facts` are lines, one a fact. When the ranks do not
  // all have the same, every rank throws the same InputError with the first line that differs, the
  // first rank that has it and its host.
  void demand_same(const std::string& facts);
};

class Communicator : public Messenger {
 public:
  // `parts[r]` rows of rank r, zero allowed: all[r's rows] = rank r's `mine`; `mine` has
  // parts[rank()] rows and may be its own place in `all`. Any element type.
  virtual void all_gather(const Tensor& all, const Tensor& mine,
                          const std::vector<int64_t>& parts) = 0;
  // The reverse: mine = sum over ranks, in rank order, of their `all` at this rank's rows. f32, or
  // bf16 summed in f32 and rounded once; `mine` may be its own place in `all`, whose other rows
  // stay as they are.
  virtual void reduce_scatter(const Tensor& mine, const Tensor& all,
                              const std::vector<int64_t>& parts) = 0;
  // In place, f32 or bf16, the same number of elements and the same bits on every rank. The sum is
  // in rank order; the maximum is NaN where any rank has NaN.
  virtual void all_reduce(const Tensor& tensor, Reduction reduction) = 0;
  virtual void broadcast(const Tensor& tensor, int root) = 0;
  virtual void barrier() = 0;

  // The second queue. `work` calls collectives on tensors of the communicator that it is given (and
  // nothing else); they run after all that the device was given before, in the order they were
  // begun, beside what it is given next. Their tensors stay untouched until join(), after which the
  // device's later work comes after them. `work` may run on another thread.
  virtual void beside(std::function<void(Communicator&)> work) = 0;
  virtual void join() = 0;

  // Small host messages, for metrics and agreement.
  virtual std::vector<int64_t> all_gather_host(int64_t value) = 0;
  virtual std::vector<double> sum_host(const std::vector<double>& values) = 0;  // in rank order
  // Lists of any length: `all` = the lists of all ranks end to end, `parts[r]` = length of rank
  // r's. Both keep their capacity from call to call.
  virtual void all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                               const std::vector<int32_t>& mine) = 0;

  // Payload bytes this rank has sent to others in collectives on tensors so far, and the calls
  // (host messages are not counted).
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t calls() const { return calls_; }
  // Seconds that the host has spent in collectives on tensors and in join(): what is not hidden
  // under computation. 0 where these return before the work is done (a GPU).
  double seconds() const { return seconds_; }

 protected:
  // Preconditions of all_gather and reduce_scatter.
  void check_parts(const Tensor& all, const Tensor& mine, const std::vector<int64_t>& parts) const;

  int64_t bytes_sent_ = 0;
  int64_t calls_ = 0;
  double seconds_ = 0;
};

}  // namespace maxim

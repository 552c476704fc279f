// The communicator of a single process: there is one rank, so gathering and summing are copies, on
// host memory; what already is in its place may be on any device. Never calls MPI.
#pragma once

#include <exception>

#include "comm/communicator.h"

namespace maxim {

class SoloCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(const Tensor& all, const Tensor& mine,
                  const std::vector<int64_t>& parts) override;
  void reduce_scatter(const Tensor& mine, const Tensor& all,
                      const std::vector<int64_t>& parts) override;
  void all_reduce(const Tensor& tensor, Reduction reduction) override;
  void broadcast(const Tensor& tensor, int root) override;
  void barrier() override {}
  void beside(std::function<void(Communicator&)> work) override;
  void join() override;
  std::vector<int64_t> all_gather_host(int64_t value) override { return {value}; }
  std::vector<std::string> all_gather_text(const std::string& text) override { return {text}; }
  std::vector<double> sum_host(const std::vector<double>& values) override { return values; }
  void all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                       const std::vector<int32_t>& mine) override;

 private:
  std::exception_ptr error_;  // of work beside
};

}  // namespace maxim

// The communicator of a CPU job: MPI on host memory.
//
// Everything but broadcast and the small host messages is point to point, so that the arithmetic
// is ours: a sum is taken in rank order by the rank that owns the result, and its bits do not
// depend on the algorithm that an MPI library picks. An all_reduce of P floats over N ranks moves
// 2 P (N-1) / N floats in and out of each rank, the least possible.
#pragma once

#include <mpi.h>

#include "comm/communicator.h"

namespace maxim {

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm parent);  // on a duplicate of `parent`
  ~MpiCommunicator() override;                // before MPI_Finalize
  MpiCommunicator(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_gather(const Tensor& all, const Tensor& mine,
                  const std::vector<int64_t>& parts) override;
  void reduce_scatter(const Tensor& mine, const Tensor& all,
                      const std::vector<int64_t>& parts) override;
  void all_reduce(const Tensor& tensor, Reduction reduction) override;
  void broadcast(const Tensor& tensor, int root) override;
  void barrier() override;
  std::vector<int64_t> all_gather_host(int64_t value) override;
  std::vector<std::string> all_gather_text(const std::string& text) override;
  std::vector<double> sum_host(const std::vector<double>& values) override;
  void all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                       const std::vector<int32_t>& mine) override;

 private:
  // Elements [begins[r], begins[r+1]) of `all` are the slice of rank r. out = this rank's slice
  // reduced over the ranks; with `share`, `out` lies in `all` and the other slices of `all` become
  // the results of their owners.
  void reduce_slices(float* out, float* all, Reduction reduction, bool share);
  void send(const void* data, int64_t bytes, int to);
  void receive(void* data, int64_t bytes, int from);
  void wait(std::vector<MPI_Request>& requests);
  void wait_for_all();  // that was sent and received
  template <class T>
  void gather_lists(std::vector<T>& all, const T* mine, size_t count);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  int64_t chunk_ = 0;  // floats of a slice that are sent as one message and summed at once
  std::vector<float> incoming_;              // [size - 1, chunk_]: chunks of the other ranks
  std::vector<int64_t> begins_;              // [size + 1] slices
  std::vector<const float*> parts_;          // [size] operands of one chunk, in rank order
  std::vector<int> counts_, displacements_;  // of gather_lists, [size]
  std::vector<MPI_Request> sends_, receives_;
};

}  // namespace maxim

// The communicator of a CPU job, on host memory; on a GPU job it carries the host messages.
//
// Everything is made of messages between two ranks, so that the arithmetic is ours: a sum is taken
// in rank order by the rank that owns the result, in f32, and its bits depend neither on the
// transport nor on the algorithm that a library picks. An all_reduce of P elements over N ranks
// moves 2 P (N-1) / N elements in and out of each rank, the least possible.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/communicator.h"
#include "comm/transport.h"

namespace maxim {

class HostCommunicator final : public Communicator {
 public:
  // What is begun beside runs on a thread of its own, over `second`. Without a second transport it
  // runs at once.
  HostCommunicator(std::unique_ptr<Transport> transport, std::unique_ptr<Transport> second);
  ~HostCommunicator() override;
  HostCommunicator(const HostCommunicator&) = delete;

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  void all_gather(const Tensor& all, const Tensor& mine,
                  const std::vector<int64_t>& parts) override;
  void reduce_scatter(const Tensor& mine, const Tensor& all,
                      const std::vector<int64_t>& parts) override;
  void all_reduce(const Tensor& tensor, Reduction reduction) override;
  void broadcast(const Tensor& tensor, int root) override;
  void barrier() override;
  void beside(std::function<void(Communicator&)> work) override;
  void join() override;
  std::vector<int64_t> all_gather_host(int64_t value) override;
  std::vector<std::string> all_gather_text(const std::string& text) override;
  std::vector<double> sum_host(const std::vector<double>& values) override;
  void all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                       const std::vector<int32_t>& mine) override;

 private:
  // Elements [begins[r], begins[r+1]) of `all` are the slice of rank r. out = this rank's slice
  // reduced over the ranks; with `share`, `out` lies in `all` and the other slices of `all` become
  // the results of their owners.
  template <class Element>
  void reduce_slices(Element* out, Element* all, Reduction reduction, bool share);
  template <class Element>
  void all_reduce(Element* data, int64_t count, Reduction reduction);
  void send(const void* data, int64_t bytes, int to);
  void wait_for_all();  // that was sent and received
  template <class T>
  void gather_lists(std::vector<T>& all, const T* mine, size_t count);
  void serve();  // the second queue's thread

  std::unique_ptr<Transport> transport_;
  int rank_, size_;
  int64_t chunk_ = 0;            // bytes of a slice that are sent as one message and summed at once
  std::vector<char> incoming_;   // [size - 1, chunk_]: chunks of the other ranks
  std::vector<int64_t> begins_;  // [size + 1] slices
  std::vector<const void*> parts_;               // [size] operands of one chunk, in rank order
  std::vector<int64_t> counts_, displacements_;  // of gather_lists, [size] and [size + 1]

  // The second queue: a communicator of its own and the thread that works on it.
  std::unique_ptr<HostCommunicator> second_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<std::function<void(Communicator&)>> queue_;
  bool busy_ = false, closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace maxim

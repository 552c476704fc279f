// Transport over MPI. Every call comes from one thread at a time; two transports may be used by two
// threads where MPI offers MPI_THREAD_MULTIPLE.
#pragma once

#include <mpi.h>

#include <vector>

#include "comm/transport.h"

namespace maxim {

class MpiTransport final : public Transport {
 public:
  // On a duplicate of `parent`, whose ranks all call this. A patient one sleeps between looks at
  // its messages, so that a waiting thread leaves its core to those that compute.
  MpiTransport(MPI_Comm parent, bool patient);
  ~MpiTransport() override;  // before MPI_Finalize
  MpiTransport(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(const void* data, int64_t bytes, int to) override;
  void receive(void* data, int64_t bytes, int from) override;
  void wait_for_sends() override { wait(sends_); }
  void wait_for_receives() override { wait(receives_); }

 private:
  void wait(std::vector<MPI_Request>& requests);

  MPI_Comm comm_ = MPI_COMM_NULL;
  bool patient_;
  int rank_ = 0, size_ = 1;
  std::vector<MPI_Request> sends_, receives_;
};

}  // namespace maxim

// Messages between the ranks of a job, in host memory: what HostCommunicator is made of. MPI and
// gloo implement it.
//
// Messages from one rank to another arrive in the order they were sent; both sides know the length
// (nothing is sent for zero bytes). Everything begins at once and is complete after the wait; the
// memory stays untouched until then. A lost peer or a failed call throws Error.
#pragma once

#include <cstdint>

namespace maxim {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void send(const void* data, int64_t bytes, int to) = 0;
  virtual void receive(void* data, int64_t bytes, int from) = 0;
  virtual void wait_for_sends() = 0;
  virtual void wait_for_receives() = 0;
};

}  // namespace maxim

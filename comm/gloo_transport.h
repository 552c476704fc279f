// Transport over gloo, for ranks that no MPI launcher started. A full mesh of TCP connections with
// a thread of gloo's own; calls come from one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "comm/store.h"
#include "comm/transport.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace maxim {

class GlooTransport final : public Transport {
 public:
  // Listens on `address` (numeric) of this host and connects to all other ranks, whose addresses
  // stand in the store under `name`. Collective. Error when a rank is not there at the deadline.
  GlooTransport(Store& store, const std::string& name, const std::string& address, int rank,
                int size, Deadline deadline);
  ~GlooTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(const void* data, int64_t bytes, int to) override;
  void receive(void* data, int64_t bytes, int from) override;
  void wait_for_sends() override;
  void wait_for_receives() override;

 private:
  struct Message {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    int peer;
  };
  Message message(void* data, int64_t bytes, int peer);

  int rank_, size_;
  std::shared_ptr<gloo::Context> context_;
  std::vector<uint64_t> sent_, received_;  // [size] messages so far, to and from each rank
  std::vector<Message> sends_, receives_;  // under way
};

}  // namespace maxim

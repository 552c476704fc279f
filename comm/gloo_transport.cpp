#include "comm/gloo_transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/error.h"

namespace maxim {
namespace {

// A wait of gloo that ends in vain closes all connections, so there is no time-out: whether a
// silent rank still lives is not for a transport to tell. A lost connection ends the wait at once.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
constexpr std::chrono::seconds kPatience(3);
// gloo's wait for a new connection takes this many times the time-out that it is given.
constexpr int kConnectFactor = 5;

// Our store as gloo wants it.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(maxim::Store& store, const std::string& name, Deadline deadline)
      : store_(store), name_(name), deadline_(deadline) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(name_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    std::string value;
    bool there = false;
    try {
      there = store_.get(value, name_ + key, deadline_);
    } catch (const Error&) {
      // Another rank has failed. Where the ranks are watched, its words end this process first.
      std::this_thread::sleep_for(kPatience);
      throw;
    }
    if (!there) fail("rank {} did not say where it listens", key);  // gloo's keys are ranks
    return std::vector<char>(value.begin(), value.end());
  }
  void wait(const std::vector<std::string>&) override {}  // get does
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  maxim::Store& store_;
  std::string name_;
  Deadline deadline_;
};

// Runs a step of a message to or from `peer`. Both ends number their messages alike, which is the
// slot that gloo matches them by.
template <class Step>
void attempt(int peer, Step step) {
  try {
    step();
  } catch (const std::exception& error) {
    fail("lost the connection to rank {}: {}", peer, error.what());
  }
}

}  // namespace

GlooTransport::GlooTransport(Store& store, const std::string& name, const std::string& address,
                             int rank, int size, Deadline deadline)
    : rank_(rank), size_(size), sent_(size), received_(size) {
  try {
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(std::max(left / kConnectFactor, std::chrono::milliseconds(1)));
    GlooStore keys(store, name, deadline);
    context->connectFullMesh(keys, device);
    context_ = std::move(context);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail("rank {} cannot connect to the other ranks from {}: {}", rank, address, error.what());
  }
}

GlooTransport::~GlooTransport() = default;

GlooTransport::Message GlooTransport::message(void* data, int64_t bytes, int peer) {
  return {context_->createUnboundBuffer(data, bytes), peer};
}

void GlooTransport::send(const void* data, int64_t bytes, int to) {
  if (bytes == 0) return;
  sends_.push_back(message(const_cast<void*>(data), bytes, to));
  attempt(to, [&] { sends_.back().buffer->send(to, sent_[to]++); });
}

void GlooTransport::receive(void* data, int64_t bytes, int from) {
  if (bytes == 0) return;
  receives_.push_back(message(data, bytes, from));
  attempt(from, [&] { receives_.back().buffer->recv(from, received_[from]++); });
}

void GlooTransport::wait_for_sends() {
  for (const Message& message : sends_)
    attempt(message.peer, [&] { message.buffer->waitSend(kForever); });
  sends_.clear();
}

void GlooTransport::wait_for_receives() {
  for (const Message& message : receives_)
    attempt(message.peer, [&] { message.buffer->waitRecv(kForever); });
  receives_.clear();
}

}  // namespace maxim

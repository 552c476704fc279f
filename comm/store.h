// The rendezvous of ranks that a launcher started with nothing but variables: a table of keys and
// values that rank 0 serves over TCP on MASTER_ADDR:MASTER_PORT for as long as the job starts.
//
// Server and client speak a part of the protocol of PyTorch's TCPStore (torch/csrc/distributed/
// c10d, 2.x): under torchrun and accelerate the elastic agent may already serve such a store on
// that port, and then rank 0 is a client like the others. A request is one byte and its operands;
// numbers are little-endian, texts a 64-bit length and their bytes:
//   0 validate(u32 magic)    3 get(key) -> text          6 wait(u64 n, n keys) -> u8 0, when all
//   1 set(key, text)         4 add(key, i64) -> i64        are there
//                           13 ping(u32) -> u32
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "comm/sockets.h"

namespace maxim {

// Serves the table from a thread of its own. What is not the protocol closes its own connection and
// nothing else. A client that has set a key leaves when it has started or has failed; nobody waits
// for a key any more in the first case, so who does from then on is let go: its connection is
// closed.
class StoreServer {
 public:
  // Null when the port is taken; Error when it cannot be had for another reason. Port 0: any free.
  static std::unique_ptr<StoreServer> listen(int port);
  // Waits up to a second for the clients to leave, so that they read what was set last.
  ~StoreServer();
  int port() const { return port_of(listener_); }

 private:
  StoreServer(Descriptor listener, Descriptor stop);
  void serve();

  Descriptor listener_, stop_;
  std::thread thread_;
};

// One client; its calls come from one thread at a time. `prefix` stands before all keys.
class Store {
 public:
  // Tries again until the deadline while there is nobody, or no such host. Error: nobody came, with
  // the reason of the last try. InputError: something answers there that is no such store.
  Store(const std::string& host, int port, const std::string& prefix, Deadline deadline);

  void set(const std::string& key, const std::string& value);
  // Waits for the key. False: the deadline passed. Error: the store was lost.
  bool get(std::string& value, const std::string& key, Deadline deadline);
  // Adds to a counter that begins at 0 and returns the sum.
  int64_t add(const std::string& key, int64_t value, Deadline deadline);

  // The address by which this host reaches the store: what its other ranks can reach, unless the
  // store is on this host.
  std::string local_address() const { return local_address_of(socket_); }
  const std::string& place() const { return place_; }  // "HOST:PORT"

 private:
  // The descriptor of a connection that answered a ping, or none with the reason.
  Descriptor try_connect(const std::string& host, int port, Deadline deadline, std::string& reason);
  void write(const std::string& bytes);
  void read(void* data, size_t bytes, Deadline deadline);

  std::string place_, prefix_;
  Descriptor socket_;
};

}  // namespace maxim

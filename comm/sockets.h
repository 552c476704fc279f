// TCP as the rendezvous and the lifeline need it. Sockets do not block, send at once and are closed
// by exec.
#pragma once

#include <netdb.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace maxim {

using Deadline = std::chrono::steady_clock::time_point;

int left_until(Deadline deadline);  // milliseconds for poll

// A socket or another descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

// Listens on all interfaces, IPv6 and IPv4; port 0: any free one. Nothing when the port is taken;
// Error when it cannot be had for another reason.
Descriptor listen_on(int port);
int port_of(const Descriptor& listener);
// The next who calls, or nothing; a moment later when this process can open no more descriptors,
// since the caller stays and would have the thread spin.
Descriptor accept_from(const Descriptor& listener);

// A list of getaddrinfo, freed at the end; null, with the reason, when there is no such host.
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
Addresses resolve(const std::string& host, int port, std::string& reason);
// A connection, or nothing and the reason.
Descriptor connect_to(const addrinfo& address, Deadline deadline, std::string& reason);

// Waits until there is something to read. False at the deadline.
bool wait_readable(const Descriptor& socket, Deadline deadline);

// A connection with what has arrived and is not understood yet, and what is not sent yet.
struct Connection {
  Descriptor socket = Descriptor();
  std::string in, out;

  // Takes what has arrived; of very much only a part. False: the other end is closed or lost.
  bool receive();
  // Sends what the connection takes. False: it is lost.
  bool transmit();
};

// Addresses are numeric. Those at which other hosts may reach this one: of the interfaces that are
// up, loopback and link-local ones left out.
std::vector<std::string> own_addresses();
std::string local_address_of(const Descriptor& socket);
// The address from which this host reaches `address`.
std::string route_to(const std::string& address);
bool is_loopback(const std::string& address);

}  // namespace maxim

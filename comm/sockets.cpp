#include "comm/sockets.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "runtime/error.h"

namespace maxim {
namespace {

using Clock = std::chrono::steady_clock;

// After so many bytes receive() stops, so that one peer cannot keep a thread to itself.
constexpr size_t kMostAtOnce = 128 << 10;

Descriptor open_socket(int family, int type) {
  return Descriptor(::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void send_at_once(const Descriptor& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// The address of this end or of the peer, as a numeric text.
std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  const std::string name = text;
  return name.rfind("::ffff:", 0) == 0 ? name.substr(7) : name;  // IPv4 through an IPv6 socket
}

// Connecting to a free port of this host can meet itself.
bool is_its_own_peer(const Descriptor& socket) {
  sockaddr_storage mine{}, peer{};
  socklen_t m = sizeof(mine), p = sizeof(peer);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&mine), &m);
  getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &p);
  return m == p && std::memcmp(&mine, &peer, m) == 0;
}

}  // namespace

int left_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

// One socket for both families; where the host has no IPv6, for IPv4 alone.
Descriptor listen_on(int port) {
  Descriptor socket = open_socket(AF_INET6, SOCK_STREAM);
  const bool both = socket.is_open();
  if (!both) socket = open_socket(AF_INET, SOCK_STREAM);
  if (!socket.is_open()) fail("no socket to listen on: {}", std::strerror(errno));
  const int on = 1, off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (both) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(port));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  const int status = both ? bind(socket.get(), reinterpret_cast<sockaddr*>(&six), sizeof(six))
                          : bind(socket.get(), reinterpret_cast<sockaddr*>(&four), sizeof(four));
  if (status != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) return Descriptor();
    fail("cannot listen on TCP port {}: {}", port, std::strerror(errno));
  }
  return socket;
}

int port_of(const Descriptor& listener) {
  sockaddr_in6 address{};  // the port stands at the same place in a sockaddr_in
  socklen_t length = sizeof(address);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin6_port);
}

Descriptor accept_from(const Descriptor& listener) {
  Descriptor caller(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (caller.is_open())
    send_at_once(caller);
  else if (errno == EMFILE || errno == ENFILE)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return caller;
}

Addresses resolve(const std::string& host, int port, std::string& reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status != 0) reason = fmt::format("its name is not known here ({})", gai_strerror(status));
  return Addresses(status == 0 ? list : nullptr, &freeaddrinfo);
}

Descriptor connect_to(const addrinfo& address, Deadline deadline, std::string& reason) {
  Descriptor socket = open_socket(address.ai_family, SOCK_STREAM);
  int error = socket.is_open() ? 0 : errno;
  if (error == 0 && connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd wait = {socket.get(), POLLOUT, 0};
    socklen_t length = sizeof(error);
    if (poll(&wait, 1, left_until(deadline)) <= 0)
      error = ETIMEDOUT;
    else
      getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error == 0 && is_its_own_peer(socket)) error = ECONNREFUSED;
  if (error != 0) {
    reason = std::strerror(error);
    return Descriptor();
  }
  send_at_once(socket);
  return socket;
}

bool wait_readable(const Descriptor& socket, Deadline deadline) {
  while (true) {
    pollfd wait = {socket.get(), POLLIN, 0};
    const int ready = poll(&wait, 1, left_until(deadline));
    if (ready >= 0) return ready > 0;
  }
}

bool Connection::receive() {
  char buffer[16384];
  do {
    const ssize_t bytes = recv(socket.get(), buffer, sizeof(buffer), 0);
    if (bytes <= 0) return bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    in.append(buffer, bytes);
  } while (in.size() < kMostAtOnce);
  return true;
}

bool Connection::transmit() {
  while (!out.empty()) {
    const ssize_t bytes = send(socket.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (bytes < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    out.erase(0, bytes);
  }
  return true;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
      continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr))
      continue;
    const std::string text =
        numeric(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!text.empty()) addresses.push_back(text);
  }
  freeifaddrs(all);
  return addresses;
}

std::string local_address_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return numeric(reinterpret_cast<const sockaddr*>(&address), length);
}

std::string route_to(const std::string& address) {
  std::string reason;
  const Addresses list = resolve(address, 9, reason);
  if (list == nullptr) fail("{}: {}", address, reason);
  // Connecting a datagram socket sends nothing; it picks the way.
  const Descriptor socket = open_socket(list->ai_family, SOCK_DGRAM);
  if (connect(socket.get(), list->ai_addr, list->ai_addrlen) != 0)
    fail("this host does not reach {}: {}", address, std::strerror(errno));
  return local_address_of(socket);
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.rfind("127.", 0) == 0;
}

}  // namespace maxim

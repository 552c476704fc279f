#include "comm/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/error.h"

namespace maxim {
namespace {

int open_socket(int family) {
  return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// One socket for both families where the host has IPv6.
int open_listener(sockaddr_storage& address, socklen_t& length) {
  address = {};
  int listener = open_socket(AF_INET6);
  if (listener >= 0) {
    const int off = 0;
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    auto& any = reinterpret_cast<sockaddr_in6&>(address);
    any.sin6_family = AF_INET6;
    length = sizeof(any);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0) return listener;
    close(listener);
    address = {};
  }
  listener = open_socket(AF_INET);
  auto& any = reinterpret_cast<sockaddr_in&>(address);
  any.sin_family = AF_INET;
  length = sizeof(any);
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0)
    fail("no TCP socket to listen on: {}", std::strerror(errno));
  return listener;
}

}  // namespace

Listener listen_on_free_port() {
  sockaddr_storage address;
  socklen_t length;
  const int listener = open_listener(address, length);
  if (::listen(listener, SOMAXCONN) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    fail("cannot listen on a TCP socket: {}", std::strerror(errno));
  const int port = address.ss_family == AF_INET6
                       ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
  return {listener, ntohs(static_cast<uint16_t>(port))};
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
    char text[NI_MAXHOST];
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(i->ifa_addr, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      addresses.emplace_back(text);
  }
  freeifaddrs(all);
  return addresses;
}

int connect_to(const std::string& address, int port, double seconds, std::string& reason) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  const int status = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    reason = gai_strerror(status);
    return -1;
  }
  const int connection = open_socket(found->ai_family);
  int error = connection < 0 ? errno : 0;
  if (connection >= 0 && connect(connection, found->ai_addr, found->ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      pollfd wait{connection, POLLOUT, 0};
      socklen_t length = sizeof(error);
      if (poll(&wait, 1, static_cast<int>(seconds * 1000)) <= 0)
        error = ETIMEDOUT;
      else
        getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &length);
    }
  }
  freeaddrinfo(found);
  if (error == 0) {
    const int on = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return connection;
  }
  reason = std::strerror(error);
  if (connection >= 0) close(connection);
  return -1;
}

bool wait_readable(int socket, double seconds) {
  pollfd wait{socket, POLLIN, 0};
  return poll(&wait, 1, static_cast<int>(seconds * 1000)) > 0;
}

}  // namespace maxim

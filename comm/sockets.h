// TCP sockets: all that the lifeline needs of them. Sockets do not block and are closed by exec.
#pragma once

#include <string>
#include <vector>

namespace maxim {

// Listens on a free port of all interfaces. Throws Error.
struct Listener {
  int socket, port;
};
Listener listen_on_free_port();

// The numeric addresses at which other hosts may reach this one: those of the interfaces that are
// up, loopback and link-local ones left out.
std::vector<std::string> own_addresses();

// A connection to a numeric address within `seconds`, or -1 and the reason.
int connect_to(const std::string& address, int port, double seconds, std::string& reason);

// Waits until there is something to read. False after `seconds`.
bool wait_readable(int socket, double seconds);

}  // namespace maxim

#include "comm/store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "runtime/error.h"

namespace maxim {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum Request : uint8_t { kValidate = 0, kSet = 1, kGet = 3, kAdd = 4, kWait = 6, kPing = 13 };
constexpr uint32_t kMagic = 0x3C85F7CE;
// Of one key or value of our server; a job of 10,000 ranks keeps far below it.
constexpr uint64_t kLongest = 1 << 20;
constexpr uint64_t kMostKeys = 1024;  // of one wait
constexpr auto kFarewell = milliseconds(1000);
constexpr auto kRetry = milliseconds(200);
// For the answer to a ping. A store answers at once; something else might never say a word.
constexpr auto kPingPatience = std::chrono::seconds(5);

void append(std::string& bytes, const void* data, size_t size) {
  bytes.append(static_cast<const char*>(data), size);
}
template <class T>
void append(std::string& bytes, T value) {
  append(bytes, &value, sizeof(value));
}
void append_text(std::string& bytes, const std::string& text) {
  append(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

// Thrown while a request is being read.
struct Incomplete {};  // its rest has not arrived
struct Garbage {};     // it is none

// Takes operands from the front of what a client sent.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  size_t at() const { return at_; }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(value)), sizeof(value));
    return value;
  }
  std::string text() {
    const auto size = number<uint64_t>();
    if (size > kLongest) throw Garbage();
    return std::string(take(size), size);
  }

 private:
  const char* take(size_t size) {
    if (bytes_.size() - at_ < size) throw Incomplete();
    at_ += size;
    return bytes_.data() + at_ - size;
  }
  const std::string& bytes_;
  size_t at_ = 0;
};

struct Client : Connection {
  bool valid = false;              // said the magic number
  bool known = false;              // others may wait for what it sets
  std::vector<std::string> waits;  // for these keys
};

using Table = std::map<std::string, std::string>;

void answer_wait(const Table& table, Client& client) {
  if (client.waits.empty()) return;
  for (const std::string& key : client.waits)
    if (table.count(key) == 0) return;
  client.waits.clear();
  append(client.out, uint8_t{0});
}

// One request; the number of bytes it took.
size_t handle(Table& table, Client& client) {
  Reader reader(client.in);
  const auto request = reader.number<uint8_t>();
  if (client.valid != (request != kValidate)) throw Garbage();
  if (request == kValidate) {
    if (reader.number<uint32_t>() != kMagic) throw Garbage();
    client.valid = true;
  } else if (request == kPing) {
    append(client.out, reader.number<uint32_t>());
  } else if (request == kSet) {
    const std::string key = reader.text();
    table[key] = reader.text();
    client.known = true;
  } else if (request == kGet) {
    const auto found = table.find(reader.text());
    if (found == table.end()) throw Garbage();
    append_text(client.out, found->second);
  } else if (request == kAdd) {
    const std::string key = reader.text();
    const auto value = reader.number<int64_t>();
    const auto found = table.find(key);
    const int64_t sum =
        value + (found == table.end() ? 0 : std::strtoll(found->second.c_str(), nullptr, 10));
    table[key] = std::to_string(sum);  // counters are decimal texts, as torch keeps them
    append(client.out, sum);
  } else if (request == kWait) {
    const auto count = reader.number<uint64_t>();
    if (count == 0 || count > kMostKeys) throw Garbage();
    std::vector<std::string> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(reader.text());
    client.waits = std::move(keys);
  } else {
    throw Garbage();
  }
  return reader.at();
}

// Handles what has arrived whole. False: the client is none.
bool handle_all(Table& table, Client& client) {
  try {
    while (!client.in.empty()) client.in.erase(0, handle(table, client));
  } catch (const Incomplete&) {
  } catch (const Garbage&) {
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<StoreServer> StoreServer::listen(int port) {
  Descriptor listener = listen_on(port);
  if (!listener.is_open()) return nullptr;
  Descriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.is_open()) fail("eventfd failed: {}", std::strerror(errno));
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(listener), std::move(stop)));
}

StoreServer::StoreServer(Descriptor listener, Descriptor stop)
    : listener_(std::move(listener)), stop_(std::move(stop)), thread_([this] { serve(); }) {}

StoreServer::~StoreServer() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void StoreServer::serve() {
  Table table;
  std::vector<Client> clients;
  std::optional<Deadline> end;
  bool left = false;
  while (true) {
    const bool some =
        std::any_of(clients.begin(), clients.end(), [](const Client& c) { return c.valid; });
    if (end && (!some || Clock::now() >= *end)) return;
    std::vector<pollfd> waits = {{end ? -1 : stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Client& client : clients)
      waits.push_back({client.socket.get(),
                       static_cast<short>(client.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (poll(waits.data(), waits.size(), end ? left_until(*end) : -1) < 0) continue;
    if (waits[0].revents != 0) end = Clock::now() + kFarewell;
    for (size_t i = 0; i < clients.size(); ++i) {
      if (waits[i + 2].revents == 0) continue;
      const bool open = clients[i].receive();
      left |= !open && clients[i].known;
      if (!handle_all(table, clients[i]) || !open) clients[i].socket = Descriptor();
    }
    for (Client& client : clients) {
      answer_wait(table, client);
      const bool in_vain = left && !client.waits.empty();
      if (client.socket.is_open() && (!client.transmit() || in_vain)) client.socket = Descriptor();
    }
    std::erase_if(clients, [](const Client& client) { return !client.socket.is_open(); });
    if (waits[1].revents == 0) continue;
    Client client;
    client.socket = accept_from(listener_);
    if (client.socket.is_open()) clients.push_back(std::move(client));
  }
}

Store::Store(const std::string& host, int port, const std::string& prefix, Deadline deadline)
    : place_(fmt::format("{}:{}", host, port)), prefix_(prefix) {
  std::string reason;
  while (true) {
    socket_ = try_connect(host, port, deadline, reason);
    if (socket_.is_open()) return;
    if (Clock::now() + kRetry >= deadline) break;
    std::this_thread::sleep_for(kRetry);
  }
  fail("rank 0's rendezvous at {} (MASTER_ADDR:MASTER_PORT) could not be reached: {}", place_,
       reason);
}

Descriptor Store::try_connect(const std::string& host, int port, Deadline deadline,
                              std::string& reason) {
  const Addresses addresses = resolve(host, port, reason);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    // A host that drops what is sent to it must not take the time of the other addresses.
    const Deadline patience = std::min(deadline, Clock::now() + kPingPatience);
    socket_ = connect_to(*a, patience, reason);
    if (!socket_.is_open()) continue;
    const auto nonce = static_cast<uint32_t>(getpid());
    std::string hello(1, kValidate);
    append(hello, kMagic);
    hello += static_cast<char>(kPing);
    append(hello, nonce);
    uint32_t echo = ~nonce;
    try {
      write(hello);
      read(&echo, sizeof(echo), patience);
    } catch (const Error& error) {
      socket_ = Descriptor();
      reason = fmt::format("something accepts connections, but {}", error.what());
      continue;
    }
    if (echo != nonce)
      fail_input(
          "what listens on {} (MASTER_ADDR:MASTER_PORT) is no rendezvous: another program has the "
          "port; choose another MASTER_PORT",
          place_);
    return std::move(socket_);
  }
  return Descriptor();
}

void Store::set(const std::string& key, const std::string& value) {
  std::string request(1, kSet);
  append_text(request, prefix_ + key);
  append_text(request, value);
  write(request);
}

bool Store::get(std::string& value, const std::string& key, Deadline deadline) {
  std::string request(1, kWait);
  append(request, uint64_t{1});
  append_text(request, prefix_ + key);
  write(request);
  // After a wait in vain nothing is read any more: the late answer would be taken for another's.
  if (!wait_readable(socket_, deadline)) return false;
  uint8_t ready = 1;
  read(&ready, sizeof(ready), deadline);
  if (ready != 0) fail("the rendezvous at {} answered a wait with {}", place_, ready);
  request.assign(1, kGet);
  append_text(request, prefix_ + key);
  write(request);
  const Deadline patience = Clock::now() + kPingPatience;
  uint64_t size = 0;
  read(&size, sizeof(size), patience);
  if (size > kLongest) fail("the rendezvous at {} sent a value of {} bytes", place_, size);
  value.resize(size);
  read(value.data(), size, patience);
  return true;
}

int64_t Store::add(const std::string& key, int64_t value, Deadline deadline) {
  std::string request(1, kAdd);
  append_text(request, prefix_ + key);
  append(request, value);
  write(request);
  int64_t sum = 0;
  read(&sum, sizeof(sum), deadline);
  return sum;
}

void Store::write(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += n;
    } else if (errno == EAGAIN) {
      pollfd wait = {socket_.get(), POLLOUT, 0};
      poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      fail("the connection to the rendezvous at {} is lost: {}", place_, std::strerror(errno));
    }
  }
}

void Store::read(void* data, size_t bytes, Deadline deadline) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    if (!wait_readable(socket_, deadline)) fail("the rendezvous at {} does not answer", place_);
    const ssize_t n = recv(socket_.get(), to, bytes, 0);
    if (n > 0) {
      to += n;
      bytes -= n;
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      fail("the connection to the rendezvous at {} is lost: {}", place_,
           n == 0 ? "it, or a rank that others waited for, has ended" : std::strerror(errno));
    }
  }
}

}  // namespace maxim

// The rendezvous: one protocol with two ends, and what else may sit on a port.
#include "comm/store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/reference/message_of.h"

using namespace maxim;
using Clock = std::chrono::steady_clock;

namespace {

Deadline in(double seconds) {
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

Store client(const StoreServer& server, const std::string& prefix = "/a/") {
  return Store("127.0.0.1", server.port(), prefix, in(5));
}

// A plain listener on a free port of 127.0.0.1 that says `greeting` to whoever comes first.
struct Stranger {
  explicit Stranger(const std::string& greeting) : socket(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    listen(socket.get(), 8);
    socklen_t length = sizeof(address);
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port = ntohs(address.sin_port);
    thread = std::thread([this, greeting] {
      const Descriptor peer(accept(socket.get(), nullptr, nullptr));
      char byte;
      if (send(peer.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) >= 0)
        while (recv(peer.get(), &byte, 1, 0) > 0) {
        }
    });
  }
  ~Stranger() {
    shutdown(socket.get(), SHUT_RDWR);
    thread.join();
  }
  Descriptor socket;
  int port = 0;
  std::thread thread;
};

}  // namespace

TEST_CASE("store: set, get, add") {
  const auto server = StoreServer::listen(0);
  REQUIRE(server != nullptr);
  Store one = client(*server), two = client(*server), other = client(*server, "/b/");
  one.set("key", "value");
  one.set("empty", "");
  one.set("long", std::string(500000, 'x'));
  std::string text = "before";
  CHECK(two.get(text, "key", in(5)));
  CHECK(text == "value");
  CHECK(two.get(text, "empty", in(5)));
  CHECK(text.empty());
  CHECK(two.get(text, "long", in(5)));
  CHECK(text == std::string(500000, 'x'));
  two.set("key", "again");
  CHECK(two.get(text, "key", in(5)));
  CHECK(text == "again");
  CHECK(one.add("n", 1, in(5)) == 1);
  CHECK(two.add("n", 41, in(5)) == 42);
  CHECK(other.add("n", -1, in(5)) == -1);  // another prefix, another key
  CHECK(one.local_address() == "127.0.0.1");
}

TEST_CASE("store: a get waits for the key, until the deadline") {
  const auto server = StoreServer::listen(0);
  Store one = client(*server), two = client(*server), three = client(*server);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    two.set("late", "come");
  });
  std::string text;
  CHECK(one.get(text, "late", in(10)));
  CHECK(text == "come");
  late.join();
  const auto start = Clock::now();
  CHECK_FALSE(three.get(text, "never", in(0.2)));
  CHECK(Clock::now() - start < std::chrono::seconds(2));
  three.set("after", "all");  // what waited in vain can still speak
  CHECK(one.get(text, "after", in(5)));
}

TEST_CASE("store: a taken port is told, and the server lingers for what was set last") {
  auto server = StoreServer::listen(0);
  CHECK(StoreServer::listen(server->port()) == nullptr);
  Store reader = client(*server);
  std::string text;
  std::thread wait([&] { CHECK(reader.get(text, "verdict", in(5))); });
  {
    Store writer = client(*server);
    writer.set("verdict", "bad");
  }
  server.reset();
  wait.join();
  CHECK(text == "bad");
}

TEST_CASE("store: who leaves lets go of who waits") {
  const auto server = StoreServer::listen(0);
  Store one = client(*server), late = client(*server), idle = client(*server);
  auto two = std::make_unique<Store>(client(*server));
  two->set("two", "");
  std::string message, text;
  std::thread wait(
      [&] { message = maxim_tests::message_of<Error>([&] { one.get(text, "never", in(10)); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto start = Clock::now();
  two.reset();
  wait.join();
  CHECK(Clock::now() - start < std::chrono::seconds(2));
  CHECK(message.find("is lost: it, or a rank that others waited for, has ended") != message.npos);
  CHECK_THROWS_AS(late.get(text, "never", in(10)), Error);
  CHECK(Clock::now() - start < std::chrono::seconds(2));
  idle.set("key", "value");  // who did not wait has noticed nothing
  CHECK(idle.get(text, "key", in(5)));
}

TEST_CASE("store: garbage closes its own connection only") {
  const auto server = StoreServer::listen(0);
  Store good = client(*server);
  std::vector<std::string> garbage = {"GET / HTTP/1.1\r\n\r\n", std::string(1, '\0'),
                                      std::string("\0\1\2\3\4", 5), std::string(100000, '\xff')};
  // After the magic number: an unknown request, a text longer than can be, a get without a key.
  const std::string hello("\0\xCE\xF7\x85\x3C", 5);
  garbage.push_back(hello + std::string(20, '\x63'));
  garbage.push_back(hello + "\1" + std::string(8, '\x7f'));
  garbage.push_back(hello + "\3" + std::string("\1\0\0\0\0\0\0\0k", 9));
  for (const std::string& bytes : garbage) {
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(server->port()));
    REQUIRE(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    CHECK(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0);
    if (bytes.size() > 1) {  // the server hangs up
      const timeval patience = {5, 0};
      setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      char byte;
      const ssize_t n = recv(socket.get(), &byte, 1, 0);
      CHECK((n == 0 || (n < 0 && errno == ECONNRESET)));
    }
    CHECK(good.add("n", 1, in(5)) > 0);
  }
}

TEST_CASE("store: nobody, no such host, a stranger") {
  const auto reach = [](const std::string& host, int port, double seconds) {
    const auto start = Clock::now();
    const std::string message =
        maxim_tests::message_of<Error>([&] { Store(host, port, "", in(seconds)); });
    CHECK(Clock::now() - start < std::chrono::milliseconds(static_cast<int>(1000 * seconds) + 900));
    return message;
  };
  int port = 0;
  {
    const Stranger gone("");
    port = gone.port;
  }
  CHECK(reach("127.0.0.1", port, 1).find("Connection refused") != std::string::npos);
  CHECK(reach("no-such-host.invalid", port, 1).find("name is not known") != std::string::npos);
  {
    const Stranger web("HTTP/1.1 400 Bad Request\r\n\r\n");
    CHECK_THROWS_AS(Store("127.0.0.1", web.port, "", in(5)), InputError);
  }
  const Stranger mute("");
  CHECK(reach("127.0.0.1", mute.port, 1).find("does not answer") != std::string::npos);
}

TEST_CASE("store: addresses") {
  CHECK(is_loopback("127.0.1.1"));
  CHECK(is_loopback("::1"));
  CHECK_FALSE(is_loopback("10.1.2.3"));
  CHECK(route_to("127.0.0.1") == "127.0.0.1");
}

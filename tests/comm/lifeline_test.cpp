// A lifeline that cannot be connected. The jobs of tests/apps live and die by theirs.
#include "comm/lifeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/sockets.h"
#include "runtime/error.h"
#include "tests/catch.h"

using namespace maxim;

namespace {

// Rank 1 of two. Rank 0 is on another machine, listens where it is told, and never fails.
class SecondOfTwo final : public Messenger {
 public:
  explicit SecondOfTwo(std::string invitation) : invitation_(std::move(invitation)) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  std::vector<std::string> all_gather_text(const std::string& text) override {
    const bool introduction = std::count(text.begin(), text.end(), '\n') == 3;
    return {introduction ? "far\nanother machine\n1\n" + invitation_ : "", text};
  }

 private:
  std::string invitation_;
};

std::string error_of(const std::string& invitation) {
  SecondOfTwo messenger(invitation);
  try {
    const Lifeline lifeline(messenger, "near");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("lifeline: a rank 0 out of reach is reported with what was tried") {
  const Descriptor taken = listen_on(0);
  const int silent = port_of(taken);
  int closed = 0;
  {
    const Descriptor listener = listen_on(0);
    closed = port_of(listener);
  }
  const std::string refused = error_of(fmt::format("token {} 127.0.0.1 ::1", closed));
  INFO(refused);
  CHECK(refused.find(fmt::format("cannot reach rank 0 on far over TCP, port {} (127.0.0.1: "
                                 "Connection refused; ::1: ",
                                 closed)) != std::string::npos);
  CHECK(refused.find("firewall") != std::string::npos);
  const std::string unanswered = error_of(fmt::format("token {} 127.0.0.1", silent));
  INFO(unanswered);
  CHECK(unanswered.find("127.0.0.1: something else answers there") != std::string::npos);
  CHECK(error_of(fmt::format("token {}", closed)).find("it has no address") != std::string::npos);
}

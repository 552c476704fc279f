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
class SecondOfTwo final : public Communicator {
 public:
  explicit SecondOfTwo(std::string invitation) : invitation_(std::move(invitation)) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  std::vector<std::string> all_gather_text(const std::string& text) override {
    const bool introduction = std::count(text.begin(), text.end(), '\n') == 3;
    return {introduction ? "far\nanother machine\n1\n" + invitation_ : "", text};
  }
  void all_gather(const Tensor&, const Tensor&, const std::vector<int64_t>&) override { FAIL(); }
  void reduce_scatter(const Tensor&, const Tensor&, const std::vector<int64_t>&) override {
    FAIL();
  }
  void all_reduce(const Tensor&, Reduction) override { FAIL(); }
  void broadcast(const Tensor&, int) override { FAIL(); }
  void barrier() override { FAIL(); }
  void beside(std::function<void(Communicator&)>) override { FAIL(); }
  void join() override { FAIL(); }
  std::vector<int64_t> all_gather_host(int64_t value) override { return {value, value}; }
  std::vector<double> sum_host(const std::vector<double>& values) override { return values; }
  void all_gather_list(std::vector<int32_t>&, std::vector<int64_t>&,
                       const std::vector<int32_t>&) override {
    FAIL();
  }

 private:
  std::string invitation_;
};

std::string error_of(const std::string& invitation) {
  SecondOfTwo communicator(invitation);
  try {
    const Lifeline lifeline(communicator, "near");
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

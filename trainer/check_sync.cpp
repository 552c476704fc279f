#include "trainer/check_sync.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host.h"
#include "runtime/error.h"

namespace maxim {
namespace {

int64_t checksum(const Tensor& values, Device& device, std::vector<char>& bytes) {
  bytes.resize(values.bytes());
  device.copy_out(bytes.data(), values);
  return static_cast<int64_t>(
      std::hash<std::string_view>()(std::string_view(bytes.data(), bytes.size())));
}

// What most ranks have; of equally frequent ones that of the lowest rank.
int64_t most_frequent(const std::vector<int64_t>& sums) {
  return *std::max_element(sums.begin(), sums.end(), [&](int64_t a, int64_t b) {
    return std::count(sums.begin(), sums.end(), a) < std::count(sums.begin(), sums.end(), b);
  });
}

}  // namespace

void check_sync(const Parameters& parameters, Device& device, Communicator& communicator,
                int64_t steps) {
  std::vector<int64_t> mine;
  std::vector<char> bytes;
  for (const Parameter& p : parameters.list())
    mine.push_back(
        checksum(parameters.values().slice(p.offset, p.offset + p.size()), device, bytes));
  const std::string_view all(reinterpret_cast<const char*>(mine.data()),
                             mine.size() * sizeof(int64_t));
  const auto alike = [](const std::vector<int64_t>& sums) {
    return std::equal(sums.begin() + 1, sums.end(), sums.begin());
  };
  if (alike(communicator.all_gather_host(static_cast<int64_t>(std::hash<std::string_view>()(all)))))
    return;
  const std::vector<std::string> hosts = communicator.all_gather_text(host_name());
  for (size_t i = 0; i < mine.size(); ++i) {
    const std::vector<int64_t> sums = communicator.all_gather_host(mine[i]);
    if (alike(sums)) continue;
    const int64_t right = most_frequent(sums);
    std::string ranks;
    for (size_t r = 0; r < sums.size(); ++r)
      if (sums[r] != right)
        ranks += fmt::format("{}{} on {}", ranks.empty() ? "rank " : ", rank ", r, hosts[r]);
    fail("after step {} the ranks do not have the same weights: {} differs on {}", steps,
         parameters.list()[i].name, ranks);
  }
}

}  // namespace maxim

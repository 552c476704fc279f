#include "comm/communicator.h"

#include <algorithm>
#include <sstream>

#include "comm/failure.h"
#include "comm/host.h"
#include "comm/progress.h"

namespace maxim {

// What the ranks exchange: nothing when the work succeeded (one small message, no more), else a
// digit, the exit code, then the host up to the first line end, then the message.
void Messenger::checked(const std::function<void()>& work) {
  std::string mine;
  try {
    const Phase phase("work of its own");
    work();
  } catch (...) {
    const Failure failure = current_failure();
    mine = fmt::format("{}{}\n{}", failure.exit_code, host_name(), failure.message);
  }
  const std::vector<std::string> outcomes = all_gather_text(mine);
  const auto text_of = [](const std::string& s) { return s.substr(s.find('\n') + 1); };
  const auto failed = [](const std::string& s) { return !s.empty(); };
  const auto first = std::find_if(outcomes.begin(), outcomes.end(), failed);
  if (first == outcomes.end()) return;

  std::string message = text_of(*first);
  const bool alike = std::all_of(outcomes.begin(), outcomes.end(), [&](const std::string& s) {
    return failed(s) && s[0] == (*first)[0] && text_of(s) == message;
  });
  if (!alike) {
    const std::string host = first->substr(1, first->find('\n') - 1);
    message = name_rank(static_cast<int>(first - outcomes.begin()), host, message);
  }
  if ((*first)[0] == '2') throw InputError(message);
  throw Error(message);
}

void Messenger::demand_same(const std::string& facts) {
  const std::vector<std::string> all = all_gather_text(facts);
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& other) { return other != all[0]; });
  if (other == all.end()) return;
  const std::vector<std::string> hosts = all_gather_text(host_name());
  std::istringstream expected(all[0]), found(*other);
  std::string here, there;
  do {
    if (!std::getline(expected, here)) here = "nothing";
    if (!std::getline(found, there)) there = "nothing";
  } while (here == there);
  const size_t rank = other - all.begin();
  fail_input("the ranks differ: rank 0 on {} has '{}', rank {} on {} has '{}'", hosts[0], here,
             rank, hosts[rank], there);
}

void Communicator::check_parts(const Tensor& all, const Tensor& mine,
                               const std::vector<int64_t>& parts) const {
  MAXIM_CHECK(static_cast<int>(parts.size()) == size(), "{} parts for {} ranks", parts.size(),
              size());
  int64_t rows = 0;
  for (const int64_t part : parts) {
    MAXIM_CHECK(part >= 0, "a part of {} rows", part);
    rows += part;
  }
  MAXIM_CHECK(all.rows() == rows && mine.rows() == parts[rank()],
              "all has {} rows, the parts sum to {}; mine has {}, its part {}", all.rows(), rows,
              mine.rows(), parts[rank()]);
  MAXIM_CHECK(all.dtype() == mine.dtype() && all.cols() == mine.cols(),
              "all is {} x {}, mine {} x {}", name_of(all.dtype()), all.cols(),
              name_of(mine.dtype()), mine.cols());
}

}  // namespace maxim

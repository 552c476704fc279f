// The heart of every test program: runs Catch2 and closes with the line "N passed, N failed" (test
// cases).
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "tests/run_catch.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "tests/catch.h"

namespace {

size_t passed = 0, failed = 0;
maxim_tests::Ranks job;

void print_failure(const Catch::AssertionStats& stats) {
  const Catch::AssertionResult& result = stats.assertionResult;
  std::ostringstream text;
  text << "rank " << job.rank << ": " << result.getSourceInfo()
       << ": FAILED: " << result.getExpression() << "\n  " << result.getExpandedExpression()
       << "\n  " << result.getMessage() << "\n";
  for (const Catch::MessageInfo& info : stats.infoMessages) text << "  " << info.message << "\n";
  std::fputs(text.str().c_str(), stderr);
}

#if __has_include(<catch2/catch_all.hpp>)
struct Counter : Catch::EventListenerBase {
  using EventListenerBase::EventListenerBase;
  void assertionEnded(const Catch::AssertionStats& stats) override {
    if (job.rank != 0 && !stats.assertionResult.isOk()) print_failure(stats);
  }
#else
struct Counter : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  bool assertionEnded(const Catch::AssertionStats& stats) override {
    if (job.rank != 0 && !stats.assertionResult.isOk()) print_failure(stats);
    return true;
  }
#endif
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    // A case without a single assertion proves nothing: it counts as failed.
    const bool ok = stats.totals.assertions.allPassed() && stats.totals.assertions.total() > 0;
    const bool all_ok = job.all_passed ? job.all_passed(ok) : ok;
    ++(all_ok ? passed : failed);
    if (stats.totals.assertions.total() == 0)
      std::printf("FAILED: no assertion ran in: %s\n", stats.testInfo.name.c_str());
    else if (ok && !all_ok && job.rank == 0)
      std::printf("FAILED on another rank: %s\n", stats.testInfo.name.c_str());
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(Counter)

namespace maxim_tests {

int run_catch(int argc, char** argv, const Ranks& ranks) {
  job = ranks;
  std::vector<const char*> arguments(argv, argv + argc);
  if (job.rank != 0) arguments.insert(arguments.end(), {"--out", "/dev/null"});
  const int result = Catch::Session().run(static_cast<int>(arguments.size()),
                                          const_cast<char**>(arguments.data()));
  if (job.rank == 0) std::printf("%zu passed, %zu failed\n", passed, failed);
  if (result != 0) return result;
  return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace maxim_tests

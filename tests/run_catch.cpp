// The heart of every test program: runs Catch2 and closes with the line "N passed, N failed" (test
// cases).
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "tests/run_catch.h"

#include <cstdio>
#include <cstdlib>

#include "tests/catch.h"

namespace {

size_t passed = 0, failed = 0;

#if __has_include(<catch2/catch_all.hpp>)
struct Counter : Catch::EventListenerBase {
  using EventListenerBase::EventListenerBase;
#else
struct Counter : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
#endif
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    // A case without a single assertion proves nothing: it counts as failed.
    const bool ok = stats.totals.assertions.allPassed() && stats.totals.assertions.total() > 0;
    ++(ok ? passed : failed);
    if (stats.totals.assertions.total() == 0)
      std::printf("FAILED: no assertion ran in: %s\n", stats.testInfo.name.c_str());
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(Counter)

namespace maxim_tests {

int run_catch(int argc, char** argv) {
  const int result = Catch::Session().run(argc, argv);
  std::printf("%zu passed, %zu failed\n", passed, failed);
  if (result != 0) return result;
  return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace maxim_tests

// How a job ends when something goes wrong: exit code, words, nobody left behind. Starts the MPI
// test program in the ways of tests/mpi/failures.cpp.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "comm/host.h"
#include "tests/apps/run.h"
#include "tests/catch.h"

using namespace maxim_tests;

namespace {

namespace fs = std::filesystem;

struct Ended {
  int exit_code;
  double seconds;
  std::vector<std::string> errors;  // lines of standard error that start with "error: "
  int left;                         // processes of the job that still run
};

// No ranks: without mpirun.
Ended run_failing(int ranks, const std::string& mode,
                  const std::vector<std::string>& environment = {}) {
  static int job = 0;
  const std::string mark = fmt::format("job-{}-{}", getpid(), ++job);
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "mpi_tests";
  REQUIRE(fs::exists(program));
  std::vector<std::string> command = {program.string(), "--fail", mode, mark};
  if (ranks == 1) command.insert(command.begin(), {"mpirun", "-np", "1"});
  RunOptions options;
  options.ranks = std::max(1, ranks);
  options.environment = environment;
  const RunResult result = run(command, options);
  return {result.exit_code, result.seconds, errors_of(result),
          static_cast<int>(processes_with(mark).size())};
}

struct Expected {
  const char* mode;
  int exit_code;
  int rank;  // who is named when there are several ranks; -1: nobody
  const char* message;
};

constexpr Expected kFailures[] = {
    {"all_input_checked", 2, -1, "bad flag"},
    {"all_input", 2, -1, "bad flag"},
    {"all_late", 2, -1, "bad flag"},
    {"all_error", 1, -1, "disk full"},
    {"one_input_checked", 2, 1, "bad row"},
    {"one_error_checked", 1, 1, "disk full"},
    {"one_input", 2, 1, "bad row"},
    {"one_error", 1, 1, "disk full"},
    {"one_foreign", 1, 1, "foreign"},
    {"one_memory", 1, 1, "out of memory"},
    {"one_unknown", 1, 1, "an exception of unknown type"},
};

std::string said_by(int rank, const std::string& message) {
  return fmt::format("error: rank {} on {}: {}", rank, maxim::host_name(), message);
}

void check_failure(const Expected& expected, int ranks) {
  INFO(expected.mode << " on " << ranks << " ranks");
  const Ended ended = run_failing(ranks, expected.mode);
  CHECK(ended.exit_code == expected.exit_code);
  CHECK(ended.seconds < 10);
  CHECK(ended.left == 0);
  const std::string line = ranks > 1 && expected.rank >= 0
                               ? said_by(expected.rank, expected.message)
                               : fmt::format("error: {}", expected.message);
  CHECK(ended.errors == std::vector<std::string>{line});
}

}  // namespace

TEST_CASE("failure: a single process") {
  for (const Expected& expected : kFailures) check_failure(expected, 0);
}

TEST_CASE("failure: three ranks end together, with one message") {
  for (const Expected& expected : kFailures)
    if (std::string(expected.mode) != "one_foreign" && std::string(expected.mode) != "one_unknown")
      check_failure(expected, 3);
}

TEST_CASE("failure: one, two and four ranks give the exit code too") {
  for (const int ranks : {1, 2, 4}) {
    check_failure({"all_input", 2, -1, "bad flag"}, ranks);
    check_failure({"one_error", 1, 1, "disk full"}, ranks);
  }
}

TEST_CASE("failure: of several failed ranks the lowest speaks") {
  const Ended two = run_failing(4, "two_error");
  CHECK(two.exit_code == 1);
  CHECK(two.left == 0);
  CHECK(two.errors ==
        std::vector<std::string>{"error: rank 2 on " + maxim::host_name() + ": disk full"});
  // All failed, each with its own words; when all have the same, nobody is named (above).
  const Ended all = run_failing(2, "all_different");
  CHECK(all.exit_code == 2);
  CHECK(all.errors == std::vector<std::string>{said_by(0, "bad row 0")});
}

TEST_CASE("failure: a rank that vanishes takes the job with it") {
  for (const char* mode : {"one_exit", "one_killed"}) {
    const Ended ended = run_failing(3, mode);
    INFO(mode);
    CHECK(ended.exit_code > 0);
    CHECK(ended.seconds < 10);
    CHECK(ended.left == 0);
    CHECK(ended.errors == std::vector<std::string>{
                              fmt::format("error: rank 1 on {} died: it was killed, crashed or "
                                          "left early",
                                          maxim::host_name())});
  }
}

TEST_CASE("failure: a rank that others wait for is named, unless it says that it is busy") {
  const Ended hangs = run_failing(3, "one_hangs");
  CHECK(hangs.exit_code == 1);
  CHECK(hangs.seconds < 6);  // the timeout of 1 s, 2 s of age of what is known, a second to look
  CHECK(hangs.left == 0);
  REQUIRE(hangs.errors.size() == 1);
  CHECK(hangs.errors[0].find(said_by(1, "does not go on: rank ")) == 0);
  const Ended busy = run_failing(3, "one_busy");
  CHECK(busy.exit_code == 0);
  CHECK(busy.seconds > 5);
  CHECK(busy.errors.empty());
}

TEST_CASE("failure: nothing fails") {
  for (const int ranks : {0, 1, 3}) {
    const Ended ended = run_failing(ranks, "none");
    CHECK(ended.exit_code == 0);
    CHECK(ended.errors.empty());
    CHECK(ended.left == 0);
  }
}

TEST_CASE("failure: tasks that do not know of each other are refused") {
  for (const std::vector<std::string>& environment :
       {std::vector<std::string>{"SLURM_NTASKS=2", "SLURM_PROCID=1"},
        {"SLURM_STEP_NUM_TASKS=2"},
        {"PMI_RANK=1", "PMI_SIZE=2"}}) {
    const Ended ended = run_failing(0, "none", environment);
    INFO(environment[0]);
    CHECK(ended.exit_code == 2);
    REQUIRE(ended.errors.size() == 1);
    CHECK(ended.errors[0].find("2 tasks") != std::string::npos);
  }
  // A single process asked for within a larger Slurm job.
  CHECK(run_failing(1, "none", {"SLURM_NTASKS=2"}).exit_code == 0);
  CHECK(run_failing(0, "none", {"SLURM_NTASKS=2", "SLURM_STEP_NUM_TASKS=1"}).exit_code == 0);
  CHECK(run_failing(0, "none", {"SLURM_NTASKS=1"}).exit_code == 0);
}

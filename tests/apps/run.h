// Runs a program as a user would: its own process, a time limit, both outputs caught.
#pragma once

#include <string>
#include <vector>

namespace maxim_tests {

struct RunResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out, err;
  double seconds = 0;
  bool timed_out = false;
};

struct RunOptions {
  int ranks = 1;                              // > 1: under mpirun, --oversubscribe
  double timeout = 60;                        // seconds, then the whole process group is killed
  std::string input = {};                     // standard input
  std::vector<std::string> environment = {};  // "NAME=value", added
};

// `command` is the program (relative to the working directory: "./encode") and its arguments, not
// passed through a shell.
RunResult run(const std::vector<std::string>& command, const RunOptions& options = {});

// How often `part` occurs in `text`.
int count_of(const std::string& text, const std::string& part);

// Checks that a wrong command ends on 1 and on 3 ranks within 10 seconds with exit code 2, nothing
// on standard output, and one error message that has all of `words`.
void check_refused(const std::vector<std::string>& command, const std::vector<std::string>& words);

// The lines of standard error that start with "error: ". (mpirun has lines of its own that begin
// with "error"; ours have the colon.)
std::vector<std::string> errors_of(const RunResult& result);

// Numbers of the processes whose command line begins with `program` and has `mark`. (One that
// ended, but was not waited for, has none.)
std::vector<int> processes_with(const std::string& mark, const std::string& program = "");

// A TCP port that nobody had a moment ago.
int free_port();

// Checks exit code 0 and returns the result.
RunResult run_well(const std::vector<std::string>& command, const RunOptions& options = {});

}  // namespace maxim_tests

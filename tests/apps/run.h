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
  int ranks = 1;                         // > 1: under mpirun, --oversubscribe
  double timeout = 60;                   // seconds, then the whole process group is killed
  std::string input;                     // standard input
  std::vector<std::string> environment;  // "NAME=value", added
};

// `command` is the program (relative to the working directory: "./encode") and its arguments, not
// passed through a shell.
RunResult run(const std::vector<std::string>& command, const RunOptions& options = {});

// How often `part` occurs in `text`.
int count_of(const std::string& text, const std::string& part);

// A directory under the system's temporary one, removed with all that is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace maxim_tests

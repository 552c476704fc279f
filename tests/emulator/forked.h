// Runs code that must end its program, in a child.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/catch.h"

namespace maxim_tests {

struct Outcome {
  bool exited = false;  // by itself, not by a signal
  std::string errors;   // what it wrote to standard error
};

template <class Code>
Outcome in_a_child(Code code) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    code();
    _exit(0);
  }
  close(ends[1]);
  Outcome outcome;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    outcome.errors.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  outcome.exited = WIFEXITED(status);
  return outcome;
}

}  // namespace maxim_tests

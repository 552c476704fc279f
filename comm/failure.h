// What went wrong on a rank, in words. How the ranks of a job end together: comm/lifeline.h.
#pragma once

#include <string>

namespace maxim {

struct Failure {
  int exit_code = 1;  // 2 for InputError
  std::string message;
};

// The exception being handled, as a Failure. Called in a catch block.
Failure current_failure();

// "rank R on HOST: message", for a failure that not all ranks share.
std::string name_rank(int rank, const std::string& host, const std::string& message);

// Prints "error: message" to standard error. A pipe that nobody reads is given up on after a
// second: a failure must not become a hang.
void print_failure(const std::string& message);

}  // namespace maxim

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

// Prints "error: message" to standard error in one piece, after what standard output holds.
void print_failure(const std::string& message);

}  // namespace maxim

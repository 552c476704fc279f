// What went wrong on a rank, and how the ranks of a job come to an end together.
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

// Ends a job of `size` MPI ranks in which this one failed. Waits up to a second for word that the
// others failed too. If all did, rank 0 prints each different message once and the exit code of the
// lowest rank is returned: the caller goes on to MPI_Finalize. If not, the lowest of the failed
// ranks prints its message with its name, and MPI_Abort ends all ranks with its exit code.
int end_together(int rank, int size, const std::string& host, const Failure& failure);

}  // namespace maxim

#pragma once

#include <functional>

namespace maxim_tests {

// How the ranks of an MPI job run the same tests as one program.
struct Ranks {
  int rank = 0;
  std::function<bool(bool)> all_passed;  // this rank's outcome of a case -> that of all ranks
};

// Runs the tests that the command line picks; prints "N passed, N failed"; returns the exit code.
// With `ranks`, a case passes if it passes on every rank, and ranks other than 0 print nothing but
// their failed assertions (on standard error).
int run_catch(int argc, char** argv, const Ranks& ranks = {});

}  // namespace maxim_tests

#pragma once

namespace maxim_tests {

// Runs the tests that the command line picks; prints "N passed, N failed"; returns the exit code.
int run_catch(int argc, char** argv);

}  // namespace maxim_tests

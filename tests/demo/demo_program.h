// The demo's two programs as the tests run them: those of the build that the test program is from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/files.h"
#include "tests/apps/run.h"

namespace maxim_tests {

inline RunResult run_demo(const std::string& program, const std::vector<std::string>& arguments) {
  const auto tests = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::vector<std::string> command = {tests.parent_path() / "demo" / program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(command);
}

}  // namespace maxim_tests

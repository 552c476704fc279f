// The job that the tests of this program run in.
#pragma once

#include "comm/launch.h"

namespace maxim_tests {

maxim::World& world();

// Ends this program as a faulty one would, for tests/apps: see failures.cpp.
int fail_as(const std::string& mode, maxim::World& world);

}  // namespace maxim_tests

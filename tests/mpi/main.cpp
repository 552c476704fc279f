// Tests that need several ranks: mpirun -np N build/tests/mpi_tests.
#include <algorithm>
#include <cstring>

#include "tests/mpi/places.h"
#include "tests/mpi/world.h"
#include "tests/run_catch.h"

namespace maxim_tests {
namespace {
maxim::World* current_world = nullptr;
}

maxim::World& world() { return *current_world; }

}  // namespace maxim_tests

int main(int argc, char** argv) {
  return maxim::run_program(argc, argv, [&](maxim::World& world) {
    maxim_tests::current_world = &world;
    if (argc > 2 && std::strcmp(argv[1], "--fail") == 0)
      return maxim_tests::fail_as(argv[2], world);
    const auto all_passed = [&](bool ok) {
      const std::vector<int64_t> outcomes = world.communicator->all_gather_host(ok ? 1 : 0);
      return std::count(outcomes.begin(), outcomes.end(), 1) == world.size;
    };
    const int exit_code = maxim_tests::run_catch(argc, argv, {world.rank, all_passed});
    maxim_tests::close_places();
    return exit_code;
  });
}

// The ways in which a program can fail, for the tests of comm/launch as a whole (tests/apps):
// mpirun -np N mpi_tests --fail MODE.
#include <signal.h>
#include <unistd.h>

#include <new>
#include <optional>
#include <stdexcept>

#include "comm/progress.h"
#include "runtime/error.h"
#include "tests/mpi/world.h"

namespace maxim_tests {

using maxim::fail;
using maxim::fail_input;

// Rank 1 fails (rank 0 when it is alone); the others wait for it in a barrier.
int fail_as(const std::string& mode, maxim::World& world) {
  maxim::Communicator& communicator = *world.communicator;
  const bool chosen = world.rank == (world.size > 1 ? 1 : 0);
  if (mode == "all_input_checked") communicator.checked([] { fail_input("bad flag"); });
  if (mode == "all_input") fail_input("bad flag");
  if (mode == "all_error") fail("disk full");
  if (mode == "all_late") {
    usleep(200000 * world.rank);
    fail_input("bad flag");
  }
  if (mode == "all_different") fail_input("bad row {}", world.rank);
  if (mode == "one_input_checked")
    communicator.checked([&] {
      if (chosen) fail_input("bad row");
    });
  if (mode == "one_error_checked")
    communicator.checked([&] {
      if (chosen) fail("disk full");
    });
  if (mode == "one_input" && chosen) fail_input("bad row");
  if (mode == "one_error" && chosen) fail("disk full");
  if (mode == "two_error" && world.rank + 2 >= world.size) fail("disk full");
  if (mode == "one_foreign" && chosen) throw std::runtime_error("foreign");
  if (mode == "one_memory" && chosen) throw std::bad_alloc();
  if (mode == "one_unknown" && chosen) throw 7;
  if (mode == "one_exit" && chosen) _exit(0);
  if (mode == "one_killed" && chosen) kill(getpid(), SIGKILL);
  if (mode == "one_hangs" || mode == "one_busy") {
    world.lifeline->set_timeout(1);
    if (chosen) {
      std::optional<maxim::Phase> phase;
      if (mode == "one_busy") phase.emplace("a test");
      sleep(mode == "one_busy" ? 5 : 60);
    }
  }
  communicator.barrier();
  return 0;
}

}  // namespace maxim_tests

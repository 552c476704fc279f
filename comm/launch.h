// Finds out how the program was started, sets the threads, and ends the job as a whole.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/lifeline.h"

namespace maxim {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host (shared-memory split)
  std::string host;
  int threads =
      1;  // for this rank: cores of the host it may use / ranks there; OpenMP is set to it
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Lifeline> lifeline;
};

// Runs a whole program: initialises MPI when started by mpirun or srun (environment of Open MPI,
// PMI or PMIx), else a single process; calls `program`; returns the exit code for main.
//   an exception on all ranks alike    its message once
//   on some                            that of the lowest of them, with its rank and host
// and exit code 1 (2 for InputError) everywhere. How the job ends when a rank is lost: see
// Lifeline. Refuses to train when the launcher's variables say N tasks but MPI sees one.
int run_program(int argc, char** argv, const std::function<int(World&)>& program);

}  // namespace maxim

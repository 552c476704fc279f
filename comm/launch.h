// Finds out how the program was started, sets the threads, and ends the job as a whole.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace maxim {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host (shared-memory split)
  std::string host;
  int threads =
      1;  // for this rank: cores of the host it may use / ranks there; OpenMP is set to it
  std::unique_ptr<Communicator> communicator;
};

// Runs a whole program: initialises MPI when started by mpirun or srun (environment of Open MPI,
// PMI or PMIx), else a single process; calls `program`; returns the exit code for main.
//   InputError on all ranks alike       message once, exit code 2 everywhere
//   other exceptions, or on one rank    message from the failing rank (rank and host named),
//   MPI_Abort,
//                                       exit code 1 (2 for InputError)
// Refuses to train when the launcher's variables say N tasks but MPI sees one.
int run_program(int argc, char** argv, const std::function<int(World&)>& program);

}  // namespace maxim

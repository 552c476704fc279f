// Finds out how the program was started, sets the threads, and ends the job as a whole.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/lifeline.h"

namespace maxim {

constexpr int kDefaultTimeout = 300, kLongestTimeout = 7 * 24 * 3600;  // seconds

struct World {
  int rank = 0, size = 1;
  // On this host: MPI's shared-memory split; without MPI LOCAL_RANK, or else the number of lower
  // ranks on hosts of the same name and boot.
  int local_rank = 0, local_size = 1;
  bool mpi = false;               // started by mpirun or srun; false: not one MPI call is made
  int timeout = kDefaultTimeout;  // --timeout, in seconds
  std::string host;
  int threads =
      1;  // for this rank: cores of the host it may use / ranks there; OpenMP is set to it
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Lifeline> lifeline;
};

// Runs a whole program: finds out how it was started, calls `program`, returns the exit code for
// main. In this order:
//   1. variables of Open MPI, PMI or PMIx (mpirun, srun --mpi=pmix): MPI. RANK or WORLD_SIZE that
//      say something else are refused.
//   2. RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun, accelerate, Kubernetes), or Slurm's
//      variables with MASTER_ADDR: see comm/launch_environment. Some without the others are
//      refused.
//   3. a single process; refused when Slurm's or PMI's variables say that there are several tasks.
// When the program fails
//   an exception on all ranks alike    its message once
//   on some                            that of the lowest of them, with its rank and host
// and exit code 1 (2 for InputError) everywhere. How the job ends when a rank is lost: see
// Lifeline. What fails before the ranks have met without MPI is said by every rank for itself.
int run_program(int argc, char** argv, const std::function<int(World&)>& program);

}  // namespace maxim

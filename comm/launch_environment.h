// Jobs whose launcher gives each rank nothing but variables: torchrun, accelerate, the Kubernetes
// PyTorch operator (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and
// srun without PMI (SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, with
// MASTER_ADDR). Ranks find each other through comm/store and talk through gloo. No MPI call.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/store.h"

namespace maxim {

// Null where the variable is not set, as std::getenv.
using Variables = std::function<const char*(const char*)>;

struct Environment {
  int rank = 0, size = 1;
  int local_rank = -1;  // -1: not said
  std::string master_address;
  int master_port = 0;
  std::string job;  // run and restart: two jobs, or a job started again, share no keys in a store
  bool agent_serves = false;  // torchrun's agent has the rendezvous on the master's port
};

// What the variables say; nothing when none of them is set. InputError: some are missing, are no
// numbers in their range, or contradict each other (rank and world size). With WORLD_SIZE 1 no
// master is needed. RANK and WORLD_SIZE come before Slurm's; under srun MASTER_PORT may be missing:
// it is 20000 + the job's number modulo 10000.
std::optional<Environment> read_environment(const Variables& variables);

// InputError when RANK or WORLD_SIZE is set and is not what MPI says.
void refuse_contradiction(const Variables& variables, int mpi_rank, int mpi_size);

// The communicator of the job's host memory. Collective; Error or InputError on every rank by the
// deadline when a rank does not come, two have the same number, or their world sizes differ.
// `watch` runs when all have come, before they connect to each other: from then on a rank that is
// lost can be told by other means.
std::unique_ptr<Communicator> join_job(const Environment& environment, const std::string& host,
                                       Deadline deadline,
                                       const std::function<void(Messenger&)>& watch);

}  // namespace maxim

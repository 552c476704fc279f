#include "comm/launch.h"

#include <fcntl.h>
#include <mpi.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "comm/failure.h"
#include "comm/host.h"
#include "comm/host_communicator.h"
#include "comm/mpi_transport.h"
#include "comm/solo_communicator.h"
#include "runtime/error.h"
#include "runtime/log.h"

namespace maxim {
namespace {

// What the launcher's variables say.
struct Launcher {
  bool mpi = false;       // a process manager that MPI_Init can talk to
  bool open_mpi = false;  // mpirun of Open MPI, which pins ranks unasked
  bool binding = false;   // its user chose a binding
  const char* tasks_variable = nullptr;
  int tasks = 1;
  int local_tasks = 1;  // on this host, as far as known before MPI_Init
};

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

Launcher find_launcher() {
  Launcher launcher;
  launcher.open_mpi = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  launcher.mpi = launcher.open_mpi || std::getenv("PMI_RANK") || std::getenv("PMIX_RANK");
  // mpirun sets these only for an explicit --bind-to, --cpu-set or parameter.
  for (const char* variable :
       {"OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_hwloc_base_cpu_set",
        "PRTE_MCA_hwloc_default_binding_policy", "PRTE_MCA_hwloc_default_cpu_list"})
    launcher.binding |= std::getenv(variable) != nullptr;
  // The innermost launcher first: mpirun -np 1 within a Slurm job of 4 tasks is one process.
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    if (std::getenv(variable) == nullptr) continue;
    launcher.tasks_variable = variable;
    launcher.tasks = number(variable, 1);
    break;
  }
  launcher.local_tasks = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  return launcher;
}

// Without this N copies of a single process would train the same rows and overwrite each other.
void refuse_mismatch(const Launcher& launcher, int size) {
  if (launcher.tasks <= 1 || size > 1) return;
  fail_input(
      "the launcher started {} tasks ({}={}), but MPI sees a single process. Start the program "
      "with "
      "the mpirun of the MPI it was built with, or with srun --mpi=pmix; for a single process use "
      "mpirun -np 1",
      launcher.tasks, launcher.tasks_variable, launcher.tasks);
}

// Gives this rank its share of the host: threads, and the CPUs to run them on. Open MPI pins each
// of up to two ranks to one core, which would leave 14 of 16 cores idle, so without a binding asked
// for the share is cut from what the launcher itself may use. A binding that the user (or Slurm)
// chose stands; ranks with the same CPUs share them.
int set_threads(const Launcher& launcher, MPI_Comm local) {
  const bool rebind = launcher.open_mpi && !launcher.binding;
  const CpuList cpus = rebind ? launcher_affinity() : affinity_of(0);
  int index = 0, count = 1, size = 1;
  if (local != MPI_COMM_NULL) {
    int rank = 0;
    MPI_Comm_rank(local, &rank);
    MPI_Comm_size(local, &size);
    // The list's first and last CPU and length stand for it.
    const int mine[3] = {cpus.front(), cpus.back(), static_cast<int>(cpus.size())};
    std::vector<int> all(3 * size);
    MPI_Allgather(mine, 3, MPI_INT, all.data(), 3, MPI_INT, local);
    count = 0;
    for (int r = 0; r < size; ++r) {
      if (!std::equal(mine, mine + 3, &all[3 * r])) continue;
      if (r < rank) ++index;
      ++count;
    }
  }
  const double quota = cpu_quota() / size * count;  // ranks on other CPUs of the host eat of it too
  const CpuShare share = share_of(cores_of(cpus), quota, index, count);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(share.threads);
  const int threads = omp_get_max_threads();
  // Failing to bind costs speed only where the launcher pinned us; there is nothing to tell the
  // user that they could act on.
  if (rebind) set_affinity(threads <= share.threads ? share.cpus : cpus);
  return threads;
}

void start_mpi(World& world, const Launcher& launcher, int argc, char** argv) {
  // More ranks than cores: a waiting rank must leave its core to a working one.
  const double cores = static_cast<double>(cores_of(launcher_affinity()).size());
  if (launcher.local_tasks > std::min(cores, cpu_quota()))
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS ||
      provided < MPI_THREAD_FUNNELED)
    fail("MPI_Init_thread failed, or this MPI has no support for threads");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  refuse_mismatch(launcher, world.size);
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &world.local_rank);
  MPI_Comm_size(local, &world.local_size);
  world.threads = set_threads(launcher, local);
  MPI_Comm_free(&local);
  std::unique_ptr<Transport> second;
  if (provided == MPI_THREAD_MULTIPLE)
    second = std::make_unique<MpiTransport>(MPI_COMM_WORLD, true);
  world.communicator = std::make_unique<HostCommunicator>(
      std::make_unique<MpiTransport>(MPI_COMM_WORLD, false), std::move(second));
}

void start(World& world, int argc, char** argv) {
  const Launcher launcher = find_launcher();
  world.host = host_name();
  if (launcher.mpi) {
    start_mpi(world, launcher, argc, argv);
  } else {
    refuse_mismatch(launcher, 1);
    world.threads = set_threads(launcher, MPI_COMM_NULL);
    world.communicator = std::make_unique<SoloCommunicator>();
  }
  set_up_log(world.rank);
}

// Before there is a lifeline: what is left is to end whoever the launcher can reach.
void end_alone(const World& world, const Failure& failure) {
  print_failure(name_rank(world.rank, world.host, failure.message));
  MPI_Abort(MPI_COMM_WORLD, failure.exit_code);
}

}  // namespace

int run_program(int argc, char** argv, const std::function<int(World&)>& program) {
  // A closed standard stream must not become the number of the next file that is opened. One that
  // cannot be written reports what is lost.
  while (true) {
    const int null = open("/dev/null", O_RDONLY);
    if (null > STDERR_FILENO) close(null);
    if (null < 0 || null > STDERR_FILENO) break;
  }
  World world;
  int exit_code = 0;
  bool agreed = false;  // what fails now fails on all ranks
  try {
    start(world, argc, argv);
    agreed = true;
    world.lifeline = std::make_unique<Lifeline>(*world.communicator, world.host);
    exit_code = program(world);
    world.communicator->checked([] {
      if (std::fflush(stdout) != 0 || std::ferror(stdout))
        fail("standard output is not whole: a write failed (disk full, or closed?)");
    });
    world.lifeline->end();
  } catch (...) {
    const Failure failure = current_failure();
    exit_code = failure.exit_code;
    if (world.lifeline != nullptr)
      world.lifeline->fail(failure);
    else if (world.size == 1 || (agreed && world.rank == 0))
      print_failure(failure.message);
    else if (!agreed)
      end_alone(world, failure);
  }
  world.lifeline.reset();
  world.communicator.reset();
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) MPI_Finalize();
  return exit_code;
}

}  // namespace maxim

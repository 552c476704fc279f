#include "comm/launch.h"

#include <fcntl.h>
#include <mpi.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "comm/failure.h"
#include "comm/host.h"
#include "comm/host_communicator.h"
#include "comm/launch_environment.h"
#include "comm/mpi_transport.h"
#include "comm/solo_communicator.h"
#include "runtime/error.h"
#include "runtime/fault.h"
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
  int rank = 0;         // as far as known before the ranks have met
  int local_tasks = 1;  // on this host, likewise
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
  for (const char* variable :
       {"SLURM_PROCID", "RANK", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"})
    launcher.rank = number(variable, launcher.rank);
  launcher.local_tasks = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  return launcher;
}

// Without this N copies of a single process would train the same rows and overwrite each other.
void refuse_mismatch(const Launcher& launcher, int size) {
  if (launcher.tasks <= 1 || size > 1) return;
  fail_input(
      "the launcher started {} tasks ({}={}), but MPI sees a single process. Start the program "
      "with the mpirun of the MPI it was built with, with srun --mpi=pmix, or with srun --mpi=none "
      "and MASTER_ADDR set to the first host; for a single process use mpirun -np 1",
      launcher.tasks, launcher.tasks_variable, launcher.tasks);
}

// The CPUs to share out. Open MPI pins each of up to two ranks to one core, which would leave 14 of
// 16 cores idle, so without a binding asked for it is what the launcher itself may use. A binding
// that the user (or Slurm) chose stands.
bool rebinds(const Launcher& launcher) { return launcher.open_mpi && !launcher.binding; }
CpuList usable_cpus(const Launcher& launcher) {
  return rebinds(launcher) ? launcher_affinity() : affinity_of(0);
}

// In a text; the first, the last and how many stand for all.
std::string mask_of(const CpuList& cpus) {
  return fmt::format("{} {} {}", cpus.front(), cpus.back(), cpus.size());
}

// Gives this rank its share of the host: threads, and the CPUs to run them on. `masks` are those of
// the host's ranks, of which this one is number `self`; ranks with the same CPUs share them.
int set_threads(const Launcher& launcher, const std::vector<std::string>& masks, int self) {
  const CpuList cpus = usable_cpus(launcher);
  const int size = static_cast<int>(masks.size());
  const int index = static_cast<int>(std::count(masks.begin(), masks.begin() + self, masks[self]));
  const int count = static_cast<int>(std::count(masks.begin(), masks.end(), masks[self]));
  const double quota = cpu_quota() / size * count;  // ranks on other CPUs of the host eat of it too
  const CpuShare share = share_of(cores_of(cpus), quota, index, count);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(share.threads);
  const int threads = omp_get_max_threads();
  // Failing to bind costs speed only where the launcher pinned us; there is nothing to tell the
  // user that they could act on.
  if (rebinds(launcher)) set_affinity(threads <= share.threads ? share.cpus : cpus);
  return threads;
}

// Shares out the host's threads, and finds local_rank and local_size by counting equal hosts.
void share_host(World& world, const Launcher& launcher, Messenger& messenger) {
  const std::vector<std::string> ids = messenger.all_gather_text(host_id());
  const std::vector<std::string> all = messenger.all_gather_text(mask_of(usable_cpus(launcher)));
  std::vector<std::string> masks;  // of the ranks on this host
  for (int r = 0; r < world.size; ++r) {
    if (ids[r] != ids[world.rank]) continue;
    if (r == world.rank) world.local_rank = static_cast<int>(masks.size());
    masks.push_back(all[r]);
  }
  world.local_size = static_cast<int>(masks.size());
  world.threads = set_threads(launcher, masks, world.local_rank);
}

void start_lifeline(World& world, Messenger& messenger) {
  world.lifeline = std::make_unique<Lifeline>(messenger, world.host);
  world.lifeline->set_timeout(world.timeout);
}

// Ends this process unless it is destroyed within the time: MPI_Init and the collectives before
// there is a lifeline wait for ever for a rank that does not come. A second after the rendezvous
// has given up, which can say more; later on higher ranks, so that one of them speaks and mpirun
// ends the others.
class StartLimit {
 public:
  StartLimit(const World& world, int rank)
      : thread_([this, rank, host = world.host, seconds = world.timeout] {
          std::unique_lock lock(mutex_);
          using Clock = std::chrono::steady_clock;
          const auto limit =
              Clock::now() + std::chrono::seconds(seconds + 1 + 2 * std::min(rank, 4));
          if (changed_.wait_until(lock, limit, [this] { return started_; })) return;
          // This late it was stopped, and mpirun wakes those whom it ends: another has spoken.
          if (Clock::now() > limit + std::chrono::seconds(1)) sleep(1);
          print_failure(name_rank(
              rank, host,
              fmt::format("not all ranks have started within {} s (--timeout)", seconds)));
          _exit(1);
        }) {}
  ~StartLimit() {
    {
      const std::lock_guard lock(mutex_);
      started_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StartLimit(const StartLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;
};

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
  std::unique_ptr<Transport> second;
  if (provided == MPI_THREAD_MULTIPLE)
    second = std::make_unique<MpiTransport>(MPI_COMM_WORLD, true);
  world.communicator = std::make_unique<HostCommunicator>(
      std::make_unique<MpiTransport>(MPI_COMM_WORLD, false), std::move(second));
  share_host(world, launcher, *world.communicator);
  // Whoever shares memory counts for the device, whatever the hosts call themselves.
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &world.local_rank);
  MPI_Comm_size(local, &world.local_size);
  MPI_Comm_free(&local);
}

void start_environment(World& world, const Launcher& launcher, const Environment& environment) {
  world.rank = environment.rank;
  world.size = environment.size;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(world.timeout);
  world.communicator = join_job(environment, world.host, deadline, [&](Messenger& messenger) {
    share_host(world, launcher, messenger);
    start_lifeline(world, messenger);
  });
  if (environment.local_rank >= 0) world.local_rank = environment.local_rank;
}

// --timeout is wanted before the flags are parsed, which tells what is wrong with them.
int find_timeout(int argc, char** argv) {
  int timeout = kDefaultTimeout;
  const std::string flag = "--timeout";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* text = nullptr;
    if (word == flag && i + 1 < argc) text = argv[i + 1];
    if (word.rfind(flag + "=", 0) == 0) text = argv[i] + flag.size() + 1;
    if (text == nullptr) continue;
    const int64_t value = std::strtol(text, nullptr, 10);
    if (value >= 1 && value <= kLongestTimeout) timeout = static_cast<int>(value);
  }
  return timeout;
}

// Rank 0 has a connection to every rank, and by variables every rank has two to every other;
// many systems let a process open 1,024 files unless it asks for more. Where it may not, what fails
// for want of them says so.
void allow_many_connections() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 1 << 16));
  setrlimit(RLIMIT_NOFILE, &files);
}

void start(World& world, const Launcher& launcher, int argc, char** argv) {
  allow_many_connections();
  // MPI and gloo write to connections whose peer may be gone, and report that as an error.
  const auto ignore_broken_pipes = [] { std::signal(SIGPIPE, SIG_IGN); };
  if (launcher.mpi) {
    world.mpi = true;
    ignore_broken_pipes();
    start_mpi(world, launcher, argc, argv);
  } else if (const auto environment = read_environment(std::getenv);
             environment && environment->size > 1) {
    ignore_broken_pipes();
    start_environment(world, launcher, *environment);
  } else {
    if (!environment) refuse_mismatch(launcher, 1);
    world.threads = set_threads(launcher, {mask_of(usable_cpus(launcher))}, 0);
    world.communicator = std::make_unique<SoloCommunicator>();
  }
  set_up_log(world.rank);
}

// Before there is a lifeline: what is left is to end whoever the launcher can reach.
void end_alone(const World& world, const Failure& failure) {
  std::fflush(stdout);
  print_failure(name_rank(world.rank, world.host, failure.message));
  if (world.mpi) MPI_Abort(MPI_COMM_WORLD, failure.exit_code);
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
  bool agreed = false;  // what fails now fails on all ranks (without MPI, unless one is lost)
  try {
    const Launcher launcher = find_launcher();
    world.host = host_name();
    world.timeout = find_timeout(argc, argv);
    {
      const StartLimit limit(world, launcher.rank);
      start(world, launcher, argc, argv);
      agreed = true;
      if (world.mpi)
        world.communicator->checked(
            [&] { refuse_contradiction(std::getenv, world.rank, world.size); });
      if (world.lifeline == nullptr) start_lifeline(world, *world.communicator);
    }
    set_up_fault(world.rank, world.size);
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
    else if (world.size > 1 && !(agreed && world.mpi))
      end_alone(world, failure);
    else if (world.rank == 0)
      print_failure(failure.message);
  }
  world.lifeline.reset();
  world.communicator.reset();
  if (world.mpi) MPI_Finalize();
  return exit_code;
}

}  // namespace maxim

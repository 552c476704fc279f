// Jobs whose ranks are started by variables alone, as torchrun and srun start them: what they
// compute, and how wrong settings and missing ranks end, with no rank left waiting.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "runtime/files.h"
#include "tests/apps/run.h"
#include "tests/apps/train_data.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim_tests;

namespace {

using Words = std::vector<std::string>;

std::string mpi_tests() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "mpi_tests";
}

Words master(int port) { return {"MASTER_ADDR=127.0.0.1", fmt::format("MASTER_PORT={}", port)}; }

Words rank_of(int rank, int size, Words more) {
  more.push_back(fmt::format("RANK={}", rank));
  more.push_back(fmt::format("WORLD_SIZE={}", size));
  return more;
}

// Starts one process a list of variables, all at once.
std::vector<RunResult> start(const std::vector<Words>& processes, const Words& command) {
  std::vector<std::future<RunResult>> running;
  for (const Words& environment : processes)
    running.push_back(std::async(std::launch::async, [&command, &environment] {
      return run(command, {.environment = environment});
    }));
  std::vector<RunResult> results;
  for (std::future<RunResult>& process : running) results.push_back(process.get());
  return results;
}

// Each process ends within the time-out of 4 seconds (and one for starting on a busy machine), with
// this exit code and one error that says `word`.
void check_ends(const std::vector<Words>& processes, int exit_code, const std::string& word) {
  for (const RunResult& result :
       start(processes, {mpi_tests(), "--fail", "none", "mark", "--timeout", "4"})) {
    INFO(word << "\n" << result.err);
    CHECK(result.exit_code == exit_code);
    CHECK(result.seconds < 5);
    CHECK(count_of(result.err, "error: ") == 1);
    CHECK(count_of(result.err, word) == 1);
  }
}

}  // namespace

TEST_CASE("launch: by variables the weights are mpirun's, bit for bit", "[launch]") {
  const TemporaryDirectory directory;
  const std::string file = directory.file("rows.tsv");
  maxim::write_text(file, training_rows(26, 1));
  const auto command = [&](const std::string& name) {
    return Words{"./train",
                 "--model_name_or_path",
                 "tests/golden/tiny_bert",
                 "--train_file",
                 file,
                 "--output_dir",
                 directory.file(name),
                 "--per_device_train_batch_size",
                 "4",
                 "--learning_rate",
                 "1e-3",
                 "--device",
                 "cpu"};
  };
  for (const int ranks : {2, 3}) {
    const std::string a = fmt::format("mpi{}", ranks), b = fmt::format("variables{}", ranks);
    run_well(command(a), {.ranks = ranks, .timeout = 120});
    Words started = command(b);
    started.insert(started.begin(), {"tests/launch_environment.sh", std::to_string(ranks)});
    run_well(started, {.timeout = 120});
    for (const char* weights : {"/model.safetensors", "/1_Dense/model.safetensors"})
      CHECK(maxim::read_text(directory.file(a) + weights) ==
            maxim::read_text(directory.file(b) + weights));
  }
}

TEST_CASE("launch: a missing rank, and a missing rank 0", "[launch]") {
  const Words m = master(free_port()), n = master(free_port());
  check_ends({rank_of(0, 3, m), rank_of(2, 3, m)}, 1, "missing: 1");
  check_ends({rank_of(1, 3, n), rank_of(2, 3, n)}, 1, "Connection refused");
}

TEST_CASE("launch: ranks that do not fit together", "[launch]") {
  const Words m = master(free_port()), n = master(free_port()), o = master(free_port());
  check_ends({rank_of(0, 3, m), rank_of(1, 3, m), rank_of(1, 3, m)}, 2,
             "two processes have RANK 1");
  check_ends({rank_of(0, 2, n), rank_of(0, 2, n)}, 2, "two processes have RANK 0");
  check_ends({rank_of(0, 2, o), rank_of(1, 3, o)}, 2, "differ in WORLD_SIZE");
}

TEST_CASE("launch: wrong variables end every rank at once", "[launch]") {
  const Words m = master(free_port());
  check_ends({rank_of(2, 2, m)}, 2, "RANK=2 is not below WORLD_SIZE=2");
  check_ends({{"RANK=0", "WORLD_SIZE=2"}}, 2, "MASTER_ADDR, MASTER_PORT are missing");
  check_ends({{"RANK=zero", "WORLD_SIZE=2"}}, 2, "RANK='zero'");
}

TEST_CASE("launch: a master that does not exist", "[launch]") {
  const Words m = {"MASTER_ADDR=no-such-host.invalid", fmt::format("MASTER_PORT={}", free_port())};
  check_ends({rank_of(0, 2, m), rank_of(1, 2, m)}, 1, "its name is not known");
}

TEST_CASE("launch: two jobs at once", "[launch]") {
  const Words m = master(free_port()), n = master(free_port());
  for (const RunResult& result :
       start({rank_of(0, 2, m), rank_of(0, 2, n), rank_of(1, 2, n), rank_of(1, 2, m)},
             {mpi_tests(), "--fail", "none", "mark", "--timeout", "20"})) {
    INFO(result.err);
    CHECK(result.exit_code == 0);
  }
}

TEST_CASE("launch: Slurm's variables with a master", "[launch]") {
  const Words m = master(free_port());
  std::vector<Words> tasks(2, m);
  for (int r = 0; r < 2; ++r)
    for (const std::string& variable :
         {fmt::format("SLURM_PROCID={}", r), std::string("SLURM_NTASKS=2")})
      tasks[r].push_back(variable);
  for (const RunResult& result :
       start(tasks, {mpi_tests(), "--fail", "none", "mark", "--timeout", "20"})) {
    INFO(result.err);
    CHECK(result.exit_code == 0);
  }
}

TEST_CASE("launch: MPI and the variables contradict each other", "[launch]") {
  const RunResult result = run({mpi_tests(), "--fail", "none", "mark"},
                               {.ranks = 2, .environment = {"RANK=0", "WORLD_SIZE=3"}});
  INFO(result.err);
  CHECK(result.exit_code == 2);
  CHECK(count_of(result.err, "error: two launchers contradict") == 1);
}

TEST_CASE("launch: two hosts, with a master whose name leads to itself", "[launch]") {
  const RunResult result = run({"tests/two_hosts.sh", mpi_tests()}, {.timeout = 100});
  INFO(result.out << result.err);
  if (result.exit_code == 77) WARN(result.out);
  CHECK((result.exit_code == 0 || result.exit_code == 77));
}

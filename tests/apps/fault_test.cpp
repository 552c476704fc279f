// ./train when something goes wrong in the middle, on several ranks: faults on purpose
// (MAXIM_FAULT) and signals. What must hold each time: one message that names the rank, an exit
// code that is not 0, nobody left behind, and the checkpoint of step 2 as it was.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "comm/host.h"
#include "runtime/files.h"
#include "tests/apps/run.h"
#include "tests/apps/train_data.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim_tests;
namespace fs = std::filesystem;

namespace {

struct Job {
  TemporaryDirectory directory;
  std::string output = directory.file("out");
  std::vector<std::string> command;

  explicit Job(const std::vector<std::string>& flags) {
    const std::string rows = directory.file("rows.tsv");
    maxim::write_text(rows, training_rows(20, 1));
    command = {"./train",
               "--model_name_or_path",
               "tests/golden/tiny_bert",
               "--train_file",
               rows,
               "--output_dir",
               output,
               "--logging_steps",
               "2"};
    command.insert(command.end(), flags.begin(), flags.end());
  }

  // Processes of the job: mpirun's, or those of the rank (-1: of all ranks).
  std::vector<int> processes(const char* program, int rank = -1) const {
    std::vector<int> found = processes_with(output, program);
    std::erase_if(found, [&](int process) {
      std::ifstream file(fmt::format("/proc/{}/environ", process));
      const std::string variables = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
      const auto says = [&](const char* variable) {
        const std::string setting = fmt::format("{}={}", variable, rank);
        return variables.find('\0' + setting + '\0') != std::string::npos;
      };
      return rank >= 0 && !says("OMPI_COMM_WORLD_RANK") && !says("RANK");
    });
    return found;
  }

  std::string line() const {
    std::string text;
    for (const std::string& word : command) text += word + " ";
    return text;
  }

  int saved_steps() const {  // of the last whole checkpoint
    int last = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(output, error)) {
      const std::string name = entry.path().filename();
      if (name.rfind("checkpoint-", 0) == 0 && name.find(".partial") == name.npos)
        last = std::max(last, std::stoi(name.substr(11)));
    }
    return last;
  }

  void check_checkpoint(int step) const {
    const RunResult result =
        run({"./encode", "--model_name_or_path", fmt::format("{}/checkpoint-{}", output, step),
             "--input_file", directory.file("rows.tsv"), "--output_file",
             directory.file("vectors.safetensors")});
    INFO(result.err);
    CHECK(result.exit_code == 0);
  }
};

// The job's ranks started by variables alone, one after the other; prints their exit codes.
std::vector<std::string> by_variables(const Job& job, int ranks) {
  return {"sh", "-c",
          fmt::format("for r in $(seq 0 {}); do RANK=$r WORLD_SIZE={} LOCAL_RANK=$r "
                      "MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} & ranks=\"$ranks $!\"; done; "
                      "for r in $ranks; do wait $r; echo $?; done",
                      ranks - 1, ranks, free_port(), job.line())};
}

void report(const std::string& what, double seconds) {
  if (std::getenv("MAXIM_TIMES") != nullptr) fmt::print("{:<40} {:.2f} s\n", what, seconds);
}

// A fault on `rank` before step 4 of 6, with a checkpoint every second step.
void check_fault(const std::string& kind, int rank, int ranks, const std::string& words) {
  const Job job({"--max_steps", "6", "--save_steps", "2", "--timeout", "3"});
  const std::string fault = fmt::format("MAXIM_FAULT={}:3:{}", rank, kind);
  const RunResult result = run(job.command, {.ranks = ranks, .environment = {fault}});
  INFO(fault << " on " << ranks << " ranks, exit code " << result.exit_code << "\n" << result.err);
  report(fmt::format("{} of {} ranks (whole run)", fault, ranks), result.seconds);
  CHECK(result.exit_code != 0);
  CHECK(result.seconds < 10);
  const std::vector<std::string> errors = errors_of(result);
  REQUIRE(errors.size() == 1);
  const std::string who = fmt::format("error: rank {} on {}", rank, maxim::host_name());
  CHECK(errors[0].find(who + words) == 0);
  CHECK(job.processes("./train").empty());
  CHECK(job.saved_steps() == 2);
  job.check_checkpoint(2);
}

// Sends signals to a job of three ranks that has made some steps: to `rank`, to mpirun (-2) or to
// all (-1); the second `pause` seconds after the first.
RunResult run_signalled(const Job& job, int rank, const std::vector<int>& signals,
                        const std::string& fault = "") {
  RunResult result;
  RunOptions options{.ranks = 3};
  if (!fault.empty()) options.environment = {"MAXIM_FAULT=" + fault};
  std::thread runner([&] { result = run(job.command, options); });
  for (int i = 0; i < 200 && job.saved_steps() < 4; ++i) usleep(50'000);
  const std::vector<int> targets =
      rank == -2 ? job.processes("mpirun") : job.processes("./train", rank);
  for (size_t i = 0; i < signals.size(); ++i) {
    if (i > 0) usleep(500'000);
    for (const int target : targets) kill(target, signals[i]);
  }
  const auto start = std::chrono::steady_clock::now();
  runner.join();
  report(fmt::format("signal {} to {}", signals[0], rank),
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return result;
}

const std::vector<std::string> kEndless = {"--max_steps",        "1000000", "--save_steps", "4",
                                           "--save_total_limit", "2"};

}  // namespace

TEST_CASE("fault: each kind ends the job, which says why", "[fault]") {
  const std::string died = " died: it was killed, crashed or left early";
  for (const int ranks : {2, 3, 4}) {
    check_fault("exit", 1, ranks, died);
    check_fault("kill", 1, ranks, died);
    check_fault("throw", ranks - 1, ranks, ": MAXIM_FAULT: an error before step 4");
    check_fault("failed-alloc", 1, ranks, ": MAXIM_FAULT: no memory for token ids: ");
    check_fault("failed-write", 0, ranks, ": MAXIM_FAULT: a write failed");
    check_fault("stop", 1, ranks,
                " has not been heard of for 3 s: it is stopped, or its host is lost");
  }
}

TEST_CASE("fault: a rank that never starts ends the others", "[fault]") {
  const Job job({"--max_steps", "2", "--timeout", "2"});
  const RunResult result =
      run({"sh", "-c", "[ $OMPI_COMM_WORLD_RANK = 1 ] && exec sleep 60; exec " + job.line()},
          {.ranks = 3});
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(result.seconds < 7);  // 2 and 1 until it is said, and up to 2 in which mpirun ends all
  CHECK(errors_of(result) ==
        std::vector<std::string>{
            fmt::format("error: rank 0 on {}: not all ranks have started within 2 s (--timeout)",
                        maxim::host_name())});
  CHECK(job.processes("./train").empty());
}

TEST_CASE("fault: rank 0 is watched like the others", "[fault]") {
  check_fault("kill", 0, 3, " died: it was killed, crashed or left early");
  check_fault("exit", 0, 3, " died: it was killed, crashed or left early");
  check_fault("throw", 0, 3, ": MAXIM_FAULT: an error before step 4");
  check_fault("stop", 0, 3, " has not been heard of for 3 s: it is stopped, or its host is lost");
}

TEST_CASE("fault: without mpirun the ranks end each other too", "[fault]") {
  struct Case {
    const char* fault;
    const char* codes;  // of ranks 0, 1 and 2
    const char* words;
  };
  for (const Case& c : {Case{"1:3:exit", "1\n0\n1\n", "rank 1 on {} died"},
                        Case{"1:3:kill", "1\n137\n1\n", "rank 1 on {} died"},
                        Case{"0:3:kill", "137\n1\n1\n", "rank 0 on {} died"},
                        Case{"2:3:throw", "1\n1\n1\n", "rank 2 on {}: MAXIM_FAULT"},
                        Case{"1:3:stop", "1\n137\n1\n", "rank 1 on {} has not been heard of"}}) {
    const Job job({"--max_steps", "6", "--save_steps", "2", "--timeout", "3"});
    const RunResult result =
        run(by_variables(job, 3), {.environment = {std::string("MAXIM_FAULT=") + c.fault}});
    INFO(c.fault << "\n" << result.err);
    CHECK(result.out == c.codes);
    CHECK(result.seconds < 10);
    const std::vector<std::string> errors = errors_of(result);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].find("error: " + fmt::format(fmt::runtime(c.words), maxim::host_name())) == 0);
    CHECK(job.processes("./train").empty());
    job.check_checkpoint(2);
  }
}

TEST_CASE("fault: ranks 0 and 1 lost at once, without mpirun", "[fault]") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    std::vector<std::string> flags = kEndless;
    flags.insert(flags.end(), {"--timeout", "3"});
    const Job job(flags);
    RunResult result;
    std::thread runner([&] { result = run(by_variables(job, 4)); });
    for (int i = 0; i < 200 && job.saved_steps() < 4; ++i) usleep(50'000);
    for (const int rank : {1, 0})
      for (const int process : job.processes("./train", rank)) kill(process, signal);
    const auto start = std::chrono::steady_clock::now();
    runner.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    for (const int process : job.processes("./train")) kill(process, SIGKILL);
    INFO("signal " << signal << "\n" << result.out << result.err);
    report(fmt::format("signal {} to ranks 0 and 1 of 4", signal), seconds.count());
    CHECK(seconds.count() < 10);
    const std::vector<std::string> errors = errors_of(result);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].find(fmt::format("error: rank 0 on {} ", maxim::host_name())) == 0);
    CHECK(result.out.find("1\n1\n", result.out.size() - 4) != std::string::npos);
  }
}

TEST_CASE("fault: a gradient that is not finite on one rank is skipped on all", "[fault]") {
  const Job job({"--max_steps", "6", "--save_steps", "0"});
  const RunResult result = run(job.command, {.ranks = 3, .environment = {"MAXIM_FAULT=1:3:nan"}});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(records(job.output, "step").back()["skipped_steps"] == 1);
}

TEST_CASE("fault: rank 0 may save for longer than the timeout", "[fault]") {
  const Job job({"--max_steps", "6", "--save_steps", "2", "--timeout", "2"});
  const RunResult result =
      run(job.command, {.ranks = 3, .environment = {"MAXIM_FAULT=0:3:slow-write"}});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.seconds > 8);
  CHECK(job.saved_steps() == 4);
}

TEST_CASE("fault: a variable that is not understood is refused", "[fault]") {
  const Job job({"--max_steps", "2"});
  for (const char* value :
       {"", "1:3", "1:3:explode", "a:3:kill", "1:-1:kill", "3:3:kill", "1:3:"}) {
    const RunResult result =
        run(job.command, {.ranks = 3, .environment = {std::string("MAXIM_FAULT=") + value}});
    INFO(value << "\n" << result.err);
    CHECK(result.exit_code == 2);
    const std::vector<std::string> errors = errors_of(result);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].find(fmt::format("error: MAXIM_FAULT={}: expected ", value)) == 0);
  }
}

TEST_CASE("fault: ranks that see other files, or none, are refused by name", "[fault]") {
  const TemporaryDirectory directory;
  const std::string top = fs::current_path();
  for (const char* rank : {"0", "1"}) {
    const fs::path place = fs::path(directory.file("")) / rank;
    fs::create_directory(place);
    fs::copy("tests/golden/tiny_bert", place / "model", fs::copy_options::recursive);
    maxim::write_text(place / "rows.tsv", training_rows(20, 1));
  }
  const std::string script = fmt::format(
      "cd {}/$OMPI_COMM_WORLD_RANK && exec {}/train --model_name_or_path model --train_file "
      "rows.tsv --output_dir {} --max_steps 2",
      directory.file(""), top, directory.file("out"));
  const auto check_named = [&](const std::string& words) {
    const RunResult result = run({"sh", "-c", script}, {.ranks = 2});
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.seconds < 10);
    const std::vector<std::string> errors = errors_of(result);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].find("rank 1 on " + maxim::host_name()) != std::string::npos);
    CHECK(errors[0].find(words) != std::string::npos);
  };
  const fs::path second = fs::path(directory.file("")) / "1";
  maxim::write_text(second / "rows.tsv", training_rows(19, 1));
  check_named("the ranks differ");
  fs::remove(second / "rows.tsv");
  check_named("rows.tsv");
  maxim::write_text(second / "rows.tsv", training_rows(20, 1));
  std::string weights = maxim::read_text(second / "model/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);  // the last number's exponent
  maxim::write_text(second / "model/model.safetensors", weights);
  check_named("the ranks differ");
}

TEST_CASE("fault: a signal on any rank stops all between two steps, saved", "[signal]") {
  struct Case {
    int rank, signal, exit_code;
  };
  signal(SIGHUP, SIG_DFL);  // what the ranks inherit, where this runs under nohup
  for (const Case& c : {Case{1, SIGTERM, 143}, Case{0, SIGINT, 130}, Case{-1, SIGTERM, 143},
                        Case{-2, SIGUSR1, 138}, Case{2, SIGHUP, 129}}) {
    const Job job(kEndless);
    const RunResult result = run_signalled(job, c.rank, {c.signal});
    INFO("signal " << c.signal << " to " << c.rank << "\n" << result.err);
    CHECK(result.exit_code == c.exit_code);
    CHECK_FALSE(result.timed_out);
    CHECK(errors_of(result).empty());
    CHECK(job.processes("./train").empty());
    const auto stops = records(job.output, "stop");
    REQUIRE(stops.size() == 1);
    CHECK(stops[0]["step"] == job.saved_steps());
    job.check_checkpoint(job.saved_steps());
  }
}

TEST_CASE("fault: a signal after the last step has begun changes nothing", "[signal]") {
  const Job job({"--max_steps", "2", "--save_steps", "0"});
  RunResult result;
  std::thread runner([&] {
    result = run(job.command, {.ranks = 2, .environment = {"MAXIM_FAULT=0:1:slow-write"}});
  });
  const auto files = [&] {  // of the model, in a directory that gets its name at the end
    std::error_code error;
    const fs::recursive_directory_iterator all(job.output, error);
    return std::any_of(begin(all), end(all), [](const fs::directory_entry& entry) {
      return entry.path().filename() == "model.safetensors" && entry.is_regular_file();
    });
  };
  for (int i = 0; i < 200 && !files(); ++i) usleep(50'000);
  const std::vector<int> targets = job.processes("./train", 1);
  for (const int process : targets) kill(process, SIGTERM);
  runner.join();
  INFO(result.err);
  CHECK(targets.size() == 1);
  CHECK(result.exit_code == 0);
  CHECK(records(job.output, "end").size() == 1);
  CHECK(records(job.output, "stop").empty());
}

TEST_CASE("fault: mpirun that is told to end leaves nobody behind", "[signal]") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Job job(kEndless);
    const RunResult result = run_signalled(job, -2, {signal});
    INFO(result.err);
    CHECK(result.exit_code != 0);
    CHECK_FALSE(result.timed_out);
    // mpirun kills those who wait for it in MPI_Finalize, and leaves without seeing them dead.
    for (int i = 0; i < 100 && !job.processes("./train").empty(); ++i) usleep(10'000);
    CHECK(job.processes("./train").empty());
    job.check_checkpoint(job.saved_steps());
  }
}

TEST_CASE("fault: a second signal ends a job that is saving", "[signal]") {
  const Job job(kEndless);
  const RunResult result = run_signalled(job, 1, {SIGTERM, SIGTERM}, "0:4:slow-write");
  INFO(result.err);
  CHECK(result.exit_code == 143);
  CHECK(result.seconds < 7);  // a slow write takes 8
  const std::vector<std::string> errors = errors_of(result);
  REQUIRE(errors.size() == 1);
  CHECK(errors[0] ==
        fmt::format("error: rank 1 on {}: a second signal: the job ends without saving",
                    maxim::host_name()));
  CHECK(job.processes("./train").empty());
  job.check_checkpoint(4);
}

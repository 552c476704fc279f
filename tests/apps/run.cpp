#include "tests/apps/run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "comm/sockets.h"
#include "tests/catch.h"

namespace maxim_tests {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::string> launch_command(const std::vector<std::string>& command, int ranks) {
  if (ranks == 1) return command;
  std::vector<std::string> full = {"mpirun", "--oversubscribe", "-np", std::to_string(ranks)};
  full.insert(full.end(), command.begin(), command.end());
  return full;
}

struct Pipe {
  int ends[2];  // read, write
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  }
  void close_end(int end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
};

[[noreturn]] void become(std::vector<std::string> command, const RunOptions& options) {
  setpgid(0, 0);  // a group of its own, so that a time-out ends mpirun's children too
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  for (const std::string& variable : options.environment)
    putenv(const_cast<char*>(variable.c_str()));
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

// Feeds `input` and collects both outputs until they close or the time is over.
void converse(Pipe& input, Pipe& out, Pipe& err, const RunOptions& options, Clock::time_point start,
              RunResult& result) {
  size_t written = 0;
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    if (written == options.input.size()) input.close_end(1);
    pollfd waits[3] = {
        {out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}, {input.ends[1], POLLOUT, 0}};
    const double left = options.timeout - seconds_since(start);
    if (left <= 0 || poll(waits, 3, static_cast<int>(left * 1000) + 1) == 0) {
      result.timed_out = true;
      return;
    }
    for (int i = 0; i < 2; ++i) {
      if (waits[i].revents == 0) continue;
      Pipe& pipe = i == 0 ? out : err;
      char buffer[4096];
      const ssize_t bytes = read(pipe.ends[0], buffer, sizeof(buffer));
      if (bytes <= 0)
        pipe.close_end(0);
      else
        (i == 0 ? result.out : result.err).append(buffer, bytes);
    }
    if (waits[2].revents & POLLOUT) {
      const ssize_t bytes =
          write(input.ends[1], options.input.data() + written, options.input.size() - written);
      written = bytes < 0 ? options.input.size() : written + bytes;
    } else if (waits[2].revents != 0) {
      input.close_end(1);  // the program does not read it
    }
  }
}

// Ends a program that took too long. mpirun is asked first, since only it can end its ranks, which
// have process groups of their own.
void end(pid_t child) {
  for (int signal : {SIGTERM, SIGKILL}) {
    kill(-child, signal);
    for (int i = 0; i < 30; ++i) {
      siginfo_t info{};
      if (waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child)
        return;
      usleep(100'000);
    }
  }
}

std::string description(const std::vector<std::string>& command, int ranks,
                        const RunResult& result) {
  std::string words;
  for (const std::string& word : command) words += word + " ";
  return fmt::format("{}on {} ranks, exit code {}, {:.1f} s\n{}{}", words, ranks, result.exit_code,
                     result.seconds, result.out, result.err);
}

}  // namespace

RunResult run(const std::vector<std::string>& command, const RunOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  const Clock::time_point start = Clock::now();
  RunResult result;
  Pipe input, out, err;
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    signal(SIGPIPE, SIG_DFL);
    dup2(input.ends[0], 0);
    dup2(out.ends[1], 1);
    dup2(err.ends[1], 2);
    become(launch_command(command, options.ranks), options);
  }
  input.close_end(0);
  out.close_end(1);
  err.close_end(1);
  converse(input, out, err, options, start, result);
  if (result.timed_out) end(child);
  int status = 0;
  waitpid(child, &status, 0);
  result.seconds = seconds_since(start);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void check_refused(const std::vector<std::string>& command, const std::vector<std::string>& words) {
  for (const int ranks : {1, 3}) {
    const RunResult result = run(command, {.ranks = ranks});
    INFO(description(command, ranks, result));
    CHECK(result.exit_code == 2);
    CHECK(result.seconds < 10);
    CHECK(result.out.empty());
    CHECK(count_of(result.err, "error: ") == 1);
    for (const std::string& word : words) {
      INFO("expected: " << word);
      CHECK(count_of(result.err, word) > 0);
    }
  }
}

std::vector<std::string> errors_of(const RunResult& result) {
  std::vector<std::string> errors;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("error: ", 0) == 0) errors.push_back(line);
  return errors;
}

std::vector<int> processes_with(const std::string& mark, const std::string& program) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.rfind(program, 0) == 0 && line.find(mark) != std::string::npos)
      found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

int free_port() { return maxim::port_of(maxim::listen_on(0)); }

RunResult run_well(const std::vector<std::string>& command, const RunOptions& options) {
  const RunResult result = run(command, options);
  INFO(description(command, options.ranks, result));
  CHECK(result.exit_code == 0);
  return result;
}

}  // namespace maxim_tests

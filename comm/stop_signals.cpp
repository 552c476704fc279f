#include "comm/stop_signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace maxim {
namespace {

std::atomic<int> first = 0;
std::atomic<int> later = 0;  // signals after the first
std::atomic<double> first_time = 0;
std::atomic<bool> single = false;
constexpr double kSameSeconds = 0.3;

double seconds() {  // allowed in a handler
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void note(int signal) {
  if (first == 0) {
    first_time = seconds();
    first = signal;
  } else if (seconds() - first_time > kSameSeconds) {
    if (++later > 1 || single) _exit(128 + signal);
  }
}

}  // namespace

void watch_stop_signals(bool alone) {
  single = alone;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
  struct sigaction before {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int stop_signal() { return first; }
bool stop_signal_again() { return later > 0; }

}  // namespace maxim

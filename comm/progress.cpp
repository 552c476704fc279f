#include "comm/progress.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace maxim {
namespace {

std::atomic<int64_t> collectives = 0;
std::atomic<int64_t> waiting_since = 0;  // nanoseconds of the steady clock, 0: not waiting
std::atomic<const char*> phase = nullptr;

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

bool on_main_thread() {
  thread_local const bool main = gettid() == getpid();
  return main;
}

}  // namespace

Waiting::Waiting() : counted_(on_main_thread() && waiting_since == 0) {
  if (!counted_) return;
  ++collectives;
  waiting_since = now();
}

Waiting::~Waiting() {
  if (counted_) waiting_since = 0;
}

Phase::Phase(const char* name) : outer_(phase.exchange(name)) {}
Phase::~Phase() { phase = outer_; }

Progress current_progress() {
  const int64_t since = waiting_since;
  const char* name = phase;
  const double waited = since == 0 ? 0 : std::max(1e-9, static_cast<double>(now() - since) * 1e-9);
  return {collectives, waited, name == nullptr ? "" : name};
}

}  // namespace maxim

#include "runtime/fault.h"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/error.h"

namespace maxim {
namespace {

constexpr struct {
  const char* name;
  Fault fault;
} kKinds[] = {
    {"exit", Fault::exit},
    {"kill", Fault::kill},
    {"stop", Fault::stop},
    {"throw", Fault::error},
    {"nan", Fault::nan},
    {"slow-write", Fault::slow_write},
    {"failed-alloc", Fault::failed_alloc},
    {"failed-write", Fault::failed_write},
};

constexpr auto kSlowWrite = std::chrono::seconds(8);

Fault planned = Fault::none;
int64_t planned_step = 0;

// The number up to the next colon, which is taken off too; -1 if there is none.
int64_t take_number(std::string_view& text) {
  const size_t colon = text.find(':');
  int64_t value = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (colon == text.npos || error != std::errc() || stop != text.data() + colon) return -1;
  text.remove_prefix(colon + 1);
  return value;
}

}  // namespace

Fault detail::armed_fault = Fault::none;

void set_up_fault(int rank, int size) {
  const char* variable = std::getenv("MAXIM_FAULT");
  if (variable == nullptr) return;
  std::string_view text = variable;
  const int64_t chosen = take_number(text), step = take_number(text);
  std::string names;
  for (const auto& [name, fault] : kKinds) {
    names += fmt::format(" {}", name);
    if (text != name || chosen < 0 || chosen >= size || step < 0) continue;
    if (chosen == rank) planned = fault;
    planned_step = step;
    return;
  }
  fail_input("MAXIM_FAULT={}: expected rank:step:kind with a rank below {} and a kind of:{}",
             variable, size, names);
}

void fault_before_step(int64_t step) {
  if (planned == Fault::none || step != planned_step) return;
  switch (planned) {
    case Fault::exit:
      _exit(0);
    case Fault::kill:
      kill(getpid(), SIGKILL);
      break;
    case Fault::stop:
      kill(getpid(), SIGSTOP);
      break;
    case Fault::error:
      fail("MAXIM_FAULT: an error before step {}", step + 1);
    default:
      detail::armed_fault = planned;
  }
}

void fault_in_write() {
  if (takes_fault(Fault::slow_write)) std::this_thread::sleep_for(kSlowWrite);
  if (takes_fault(Fault::failed_write)) fail("MAXIM_FAULT: a write failed");
}

}  // namespace maxim

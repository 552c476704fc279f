#include "tests/emulator/fault.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <csignal>
#include <cstdio>

#include "tests/emulator/device_heap.h"

namespace maxim_emulated {
namespace {

constexpr size_t kSignalStackBytes = 64 * 1024;
struct sigaction previous[2];

// Runs on the signal stack and leaves it by a switch to another stack, so the signal is never
// blocked (SA_NODEFER). The signal comes from an instruction of a kernel: nothing of the emulator
// or of malloc is halfway done.
void on_access_fault(int signal, siginfo_t* info, void*) {
  const std::string location = running_location();
  const std::string target = DeviceHeap::instance().describe(info->si_addr);
  if (!location.empty())
    abandon_running(std::make_exception_ptr(Fault(location + ": accesses " + target)));
  // The instruction runs again: under the handler that was there before, or none.
  if (DeviceHeap::instance().reserved(info->si_addr)) {
    Fault("host code accesses device memory without a copy: " + target);
    std::signal(signal, SIG_DFL);
  } else {
    sigaction(signal, &previous[signal == SIGBUS], nullptr);
  }
}

void take_over(int signal) {
  struct sigaction action = {}, old;
  action.sa_sigaction = on_access_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(signal, &action, &old);
  if (old.sa_sigaction != on_access_fault) previous[signal == SIGBUS] = old;
}

}  // namespace

void catch_access_faults() {
  take_over(SIGSEGV);
  take_over(SIGBUS);
}

void use_signal_stack() {
  stack_t stack = {};
  sigaltstack(nullptr, &stack);
  if ((stack.ss_flags & SS_DISABLE) == 0) return;  // AddressSanitizer has set one
  stack.ss_flags = 0;
  stack.ss_size = kSignalStackBytes;
  stack.ss_sp = mmap(nullptr, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);  // as long as its thread
  sigaltstack(&stack, nullptr);
}

Fault::Fault(const std::string& text) : std::runtime_error(text) {
  std::fprintf(stderr, "emulated CUDA: %s\n", text.c_str());
}

}  // namespace maxim_emulated

#if defined(__SANITIZE_ADDRESS__)
// AddressSanitizer calls this before its own report.
extern "C" void __asan_on_error() {
  const std::string location = maxim_emulated::running_location();
  if (!location.empty()) std::fprintf(stderr, "emulated CUDA: in %s\n", location.c_str());
}
#endif

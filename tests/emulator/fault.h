// Where accesses that the memory's protection stops become Faults.
#pragma once

#include <exception>
#include <string>

#include "emulated/emulator.h"

namespace maxim_emulated {

// Makes SIGSEGV and SIGBUS of device code end its block with a Fault, and those of host code say
// what they hit. To be called before each grid: others, such as a test's framework, may have set
// handlers since.
void catch_access_faults();
// Gives this host thread a stack for its handlers. To be called once on each that runs blocks.
void use_signal_stack();

// For the handlers, which may not know a Block: the thread that this host thread is running ("" if
// none), and the end of its block.
std::string running_location();
[[noreturn]] void abandon_running(std::exception_ptr fault);

}  // namespace maxim_emulated

// Running a grid, and the seed that orders it.
#pragma once

#include <cstdint>
#include <string>

#include "tests/emulator/block.h"

namespace maxim_emulated {

// Runs every block of a launch, several at a time, in an order of the seed's. Throws the first
// Fault.
void run_grid(const Launch& launch);

uint64_t seed();

// Host threads that emulated work may use: OMP_NUM_THREADS, or the cores.
int host_threads();

// The name of a function of this program without namespaces and parameters, as reports and counters
// have it: "layer_norm_kernel<float>". Reads the program's own symbol table, so it knows functions
// of unnamed namespaces, too.
std::string function_name(const void* function);

}  // namespace maxim_emulated

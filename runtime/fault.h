// Faults on purpose, to see how a job ends: MAXIM_FAULT=rank:step:kind in the environment.
//
// - exit, kill, stop, throw: before the step it exits with 0, gets SIGKILL or SIGSTOP, or fails;
// - nan: the step's gradient has a NaN;
// - failed-alloc: the step's first piece of memory is refused;
// - slow-write, failed-write: the first write of weights from this step on takes 8 s, or fails.
//
// Each happens once. Unset, a hook is the comparison of an int.
#pragma once

#include <cstdint>

namespace maxim {

enum class Fault { none, exit, kill, stop, error, nan, slow_write, failed_alloc, failed_write };

// Reads the variable for this rank. Throws InputError, on every rank, when it is not as above.
void set_up_fault(int rank, int size);

// Called before each step: carries out a fault of the first line, arms one of the others.
void fault_before_step(int64_t step);

namespace detail {
extern Fault armed_fault;
}
// Whether `fault` is to happen here; not again.
inline bool takes_fault(Fault fault) {
  if (detail::armed_fault != fault) return false;
  detail::armed_fault = Fault::none;
  return true;
}

// The faults of a write of weights.
void fault_in_write();

}  // namespace maxim

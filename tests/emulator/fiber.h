// Fibers: stacks that one host thread switches between. A fiber starts on its first switch_to, runs
// its entry function, which never returns, and keeps its place while another one runs.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace maxim_emulated {

class Fiber {
 public:
  // The host thread's own stack, as the fiber that other fibers are switched to from.
  Fiber() = default;
  // A new stack, between pages that cannot be touched. `colour` staggers the stacks' tops, which
  // would otherwise share one set of each cache.
  explicit Fiber(int colour);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // (Re)starts with `entry`; what was on the stack is forgotten.
  void restart(void (*entry)());
  // Leaves `from`, the running fiber, for `to`.
  static void switch_to(Fiber& from, Fiber& to);

 private:
  static void arrive(boost::context::detail::transfer_t from, void* fake_stack);

  boost::context::detail::fcontext_t place_ = nullptr;
  void (*entry_)() = nullptr;
  char* mapping_ = nullptr;
  char* top_ = nullptr;
  // What AddressSanitizer is told on a switch.
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace maxim_emulated

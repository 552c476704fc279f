// Fibers: stacks that one host thread switches between. A fiber starts on its first switch_to, runs
// its entry function, which never returns, and keeps its place while another one runs.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

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
  // Leaves `from`, the running fiber, for `to`. Inline, because the processor predicts no return
  // of a fiber that it has just switched to: each frame between a kernel and here costs 5 ns.
  static void switch_to(Fiber& from, Fiber& to);

 private:
  static void arrive(boost::context::detail::transfer_t from, void* fake_stack);
  void unpoison();

  boost::context::detail::fcontext_t place_ = nullptr;
  void (*entry_)() = nullptr;
  char* mapping_ = nullptr;
  char* top_ = nullptr;
  // What AddressSanitizer is told on a switch.
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;
};

inline void Fiber::switch_to(Fiber& from, Fiber& to) {
  Fiber* both[] = {&from, &to};
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
  arrive(boost::context::detail::jump_fcontext(to.place_, both), from.fake_stack_);
}

// Runs first on the fiber that was switched to: notes where the one that was left stands.
inline void Fiber::arrive(boost::context::detail::transfer_t from,
                          [[maybe_unused]] void* fake_stack) {
  Fiber& left = *static_cast<Fiber**>(from.data)[0];
  left.place_ = from.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &left.bottom_, &left.size_);
#endif
}

}  // namespace maxim_emulated

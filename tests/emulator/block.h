// One block of a launch, run on one host thread: its threads are fibers, its shared memory a buffer
// that ends at a page without access.
//
// A thread runs until it waits for others. Then a ready one is drawn: by a coin that is thrown anew
// after each barrier either threads that a warp exchange woke go first, so that one warp runs ahead
// of all others, or those that have not run since the barrier, so that all advance together. Among
// them each is equally likely. Nobody ready and somebody waiting is a divergence, and a Fault.
//
// A fiber whose thread has ended takes the next thread that has not started, so a kernel without
// barriers needs one fiber and no switches.
#pragma once

#include <bit>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulated/block.h"
#include "emulated/warp.h"
#include "tests/emulator/fiber.h"
#include "tests/emulator/random.h"

namespace maxim_emulated {

struct Launch {
  std::string name;
  dim3 grid, block;
  size_t shared_bytes = 0;
  std::function<void()> call;  // the kernel's code for the thread that threadIdx names
};

class Block {
 public:
  // The one of the calling host thread.
  static Block& of_this_thread();
  Block();
  Block(const Block&) = delete;

  // Runs all threads of block `index`; throws the first Fault of one of them.
  void run(const Launch& launch, uint3 index, uint64_t seed);

  // For the code of a running thread.
  bool running() const { return current_ != nullptr; }
  int lane() const { return current_->id % warpSize; }
  void* shared() const { return shared_; }
  void* static_shared(const void* key, size_t bytes);
  Votes barrier(const char* kind, bool vote, const Site& site);
  void exchange(const char* kind, unsigned mask, void* mine, size_t bytes,
                void (*combine)(unsigned, unsigned char*), const Site& site);
  void check_shared(const void* address, size_t bytes) const;
  void copy_later(void* shared, const void* global, size_t bytes, size_t source_bytes);
  void commit_copies() { ++current_->copy_groups; }
  void land_copies(int newest);
  // "kernel k, block (0, 0, 0), thread (1, 0, 0)"
  std::string location() const;
  // Ends the block with a fault of the running thread; never returns. For signal handlers.
  [[noreturn]] void abandon(std::exception_ptr fault);

 private:
  enum class State : uint8_t { kReady, kAtBarrier, kInExchange, kDone };
  struct Copy {
    void* shared;
    const void* global;
    size_t bytes, source_bytes;
    int group;
  };
  struct Thread {
    int id = 0;
    uint3 index = {};
    State state = State::kReady;
    Fiber* fiber = nullptr;  // null until it starts
    const char* waits_in = nullptr;
    Site site;
    std::vector<Copy> copies;
    int copy_groups = 0;
  };
  // A collective that some lanes of a warp have reached, or that not all have left.
  struct Exchange {
    const char* kind = nullptr;
    unsigned mask = 0, arrived = 0, left = 0;
    alignas(16) unsigned char slots[32 * Lanes<char>::kSlotBytes];
  };
  struct Warp {
    std::vector<std::unique_ptr<Exchange>> exchanges;
  };

  // Memory, poisoned at first, with a page without access behind its end.
  class GuardedMemory {
   public:
    explicit GuardedMemory(size_t bytes);
    ~GuardedMemory();
    GuardedMemory(const GuardedMemory&) = delete;
    unsigned char* begin() const { return end_ - bytes_; }
    unsigned char* end() const { return end_; }
    void poison();

   private:
    size_t bytes_, mapped_;
    unsigned char* end_;
  };

  static void run_threads();  // what a fiber does, for ever
  void prepare(const Launch& launch, uint3 index, uint64_t seed);
  void poison_shared(size_t bytes);
  void check_shared_end() const;
  Thread* draw();
  void enter(Thread& thread);
  Fiber& fiber_for(Thread& thread);
  void wait();
  void release_barrier();
  void forget_fibers();
  [[noreturn]] void fail_divergence() const;
  std::string describe(const Thread& thread) const;

  const Launch* launch_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<int> fresh_, woken_;  // ready threads: since the barrier, since an exchange
  bool warps_run_ahead_ = false;
  Random random_;
  Thread* current_ = nullptr;
  int done_ = 0, at_barrier_ = 0, votes_ = 0, counted_ = 0;
  std::exception_ptr fault_;

  Fiber host_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;

  GuardedMemory shared_mapping_;
  unsigned char* shared_ = nullptr;                     // the end of it that this launch has
  std::map<const void*, GuardedMemory> static_arrays_;  // of all kernels so far
};

}  // namespace maxim_emulated

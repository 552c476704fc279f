#include "tests/emulator/block.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/emulator/device_limits.h"
#include "tests/emulator/fault.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

thread_local constinit uint3 threadIdx = {};
thread_local constinit uint3 blockIdx = {};
thread_local constinit dim3 blockDim = {};
thread_local constinit dim3 gridDim = {};

namespace maxim_emulated {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSharedAlignment = 1024;
constexpr unsigned char kPoison = 0xff;  // a NaN in every float type

// The block whose threads this host thread is running.
thread_local constinit Block* running_block = nullptr;

bool same_place(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

std::string text(const uint3& v) { return fmt::format("({}, {}, {})", v.x, v.y, v.z); }

Block& running() {
  if (running_block == nullptr) throw Fault("device code runs outside of a kernel");
  return *running_block;
}

}  // namespace

Block& Block::of_this_thread() {
  static thread_local Block block;
  return block;
}

Block::Block() : shared_mapping_(kMaxSharedBytes) { use_signal_stack(); }

void Block::run(const Launch& launch, uint3 index, uint64_t seed) {
  prepare(launch, index, seed);
  running_block = this;
  Thread& first = *draw();
  Fiber& fiber = fiber_for(first);
  enter(first);
  Fiber::switch_to(host_, fiber);
  running_block = nullptr;
  current_ = nullptr;
  if (fault_ != nullptr) {
    forget_fibers();
    std::rethrow_exception(std::exchange(fault_, nullptr));
  }
  if (done_ < static_cast<int>(threads_.size())) {
    forget_fibers();
    fail_divergence();
  }
  check_shared_end();
}

void Block::prepare(const Launch& launch, uint3 index, uint64_t seed) {
  launch_ = &launch;
  blockIdx = index;
  blockDim = launch.block;
  gridDim = launch.grid;
  random_ = Random(seed);
  const unsigned count = launch.block.x * launch.block.y * launch.block.z;
  threads_.resize(count);
  warps_.resize((count + warpSize - 1) / warpSize);
  for (Warp& warp : warps_)
    for (auto& exchange : warp.exchanges) exchange->mask = exchange->arrived = exchange->left = 0;
  done_ = at_barrier_ = votes_ = 0;
  fresh_.resize(count);
  woken_.clear();
  warps_run_ahead_ = random_.coin();
  uint3 next = {0, 0, 0};
  for (unsigned id = 0; id < count; ++id) {
    Thread& thread = threads_[id];
    thread.id = static_cast<int>(id);
    thread.index = next;
    thread.state = State::kReady;
    thread.fiber = nullptr;
    thread.copies.clear();
    thread.copy_groups = 0;
    fresh_[id] = thread.id;
    if (++next.x == launch.block.x) next.x = 0, ++next.y;
    if (next.y == launch.block.y) next.y = 0, ++next.z;
  }
  poison_shared(launch.shared_bytes);
}

Block::GuardedMemory::GuardedMemory(size_t bytes)
    : bytes_((bytes + 15) / 16 * 16), mapped_((bytes_ + kPage - 1) / kPage * kPage) {
  void* mapping = mmap(nullptr, mapped_ + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, mapped_, PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc();
  end_ = static_cast<unsigned char*>(mapping) + mapped_;
  poison();
}

Block::GuardedMemory::~GuardedMemory() { munmap(end_ - mapped_, mapped_ + kPage); }

void Block::GuardedMemory::poison() { std::memset(begin(), kPoison, bytes_); }

void* Block::static_shared(const void* key, size_t bytes) {
  return static_arrays_.try_emplace(key, bytes).first->second.begin();
}

void Block::poison_shared(size_t bytes) {
  for (auto& [key, array] : static_arrays_) array.poison();
  const size_t whole = (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  ASAN_UNPOISON_MEMORY_REGION(shared_mapping_.begin(), kMaxSharedBytes);
  shared_ = shared_mapping_.end() - whole;
  std::memset(shared_, kPoison, whole);
  ASAN_POISON_MEMORY_REGION(shared_mapping_.begin(), kMaxSharedBytes - whole);
  ASAN_POISON_MEMORY_REGION(shared_ + bytes, whole - bytes);
}

// Shared memory starts at a multiple of 1,024 bytes, so up to 1,023 bytes lie between its end and
// the page without access.
void Block::check_shared_end() const {
#if !defined(__SANITIZE_ADDRESS__)
  const unsigned char* end = shared_ + launch_->shared_bytes;
  const unsigned char* mapped = shared_mapping_.end();
  const auto written = std::find_if(end, mapped, [](unsigned char c) { return c != kPoison; });
  if (written != mapped)
    throw Fault(
        fmt::format("kernel {}, block {}: byte {} behind the end of its {} bytes of shared "
                    "memory was written",
                    launch_->name, text(blockIdx), written - end, launch_->shared_bytes));
#endif
}

// Takes a ready thread, by the rule of the head comment; null if there is none.
Block::Thread* Block::draw() {
  std::vector<int>* from = warps_run_ahead_ ? &woken_ : &fresh_;
  if (from->empty()) from = warps_run_ahead_ ? &fresh_ : &woken_;
  if (from->empty()) return nullptr;
  int& drawn = (*from)[random_.below(static_cast<uint32_t>(from->size()))];
  std::swap(drawn, from->back());
  Thread* thread = &threads_[from->back()];
  from->pop_back();
  return thread;
}

void Block::enter(Thread& thread) {
  current_ = &thread;
  threadIdx = thread.index;
}

Fiber& Block::fiber_for(Thread& thread) {
  if (thread.fiber != nullptr) return *thread.fiber;
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(static_cast<int>(fibers_.size())));
    fibers_.back()->restart(run_threads);
    idle_.push_back(fibers_.back().get());
  }
  thread.fiber = idle_.back();
  idle_.pop_back();
  return *thread.fiber;
}

void Block::run_threads() {
  for (;;) {
    Block& block = *running_block;
    Thread& me = *block.current_;
    Fiber& fiber = *me.fiber;
    try {
      block.launch_->call();
    } catch (...) {
      block.fault_ = std::current_exception();
    }
    me.state = State::kDone;
    me.fiber = nullptr;
    ++block.done_;
    Thread* next = block.fault_ != nullptr ? nullptr : block.draw();
    if (next != nullptr && next->fiber == nullptr) {
      next->fiber = &fiber;
      block.enter(*next);
      continue;
    }
    block.idle_.push_back(&fiber);
    if (next != nullptr) block.enter(*next);
    Fiber::switch_to(fiber, next != nullptr ? *next->fiber : block.host_);
  }
}

// The running thread lets others run until it is drawn again.
void Block::wait() {
  Thread& me = *current_;
  Thread* next = draw();
  if (next == &me) return;
  if (next == nullptr) {
    Fiber::switch_to(*me.fiber, host_);
    return;
  }
  Fiber& fiber = fiber_for(*next);
  enter(*next);
  Fiber::switch_to(*me.fiber, fiber);
}

void Block::abandon(std::exception_ptr fault) {
  fault_ = std::move(fault);
  Fiber::switch_to(*current_->fiber, host_);
  __builtin_unreachable();
}

// Fibers that were left in the middle start afresh.
void Block::forget_fibers() {
  idle_.clear();
  for (auto& fiber : fibers_) {
    fiber->restart(run_threads);
    idle_.push_back(fiber.get());
  }
}

Votes Block::barrier(const char* kind, bool vote, const Site& site) {
  Thread& me = *current_;
  me.state = State::kAtBarrier;
  me.waits_in = kind;
  me.site = site;
  votes_ += vote;
  if (++at_barrier_ == static_cast<int>(threads_.size())) release_barrier();
  wait();
  return {counted_, static_cast<int>(threads_.size())};
}

void Block::release_barrier() {
  for (Thread& thread : threads_) {
    if (!same_place(thread.site, current_->site))
      throw Fault(fmt::format("kernel {}, block {}: divergent barrier: {}, but {}", launch_->name,
                              text(blockIdx), describe(*current_), describe(thread)));
    thread.state = State::kReady;
    fresh_.push_back(thread.id);
  }
  counted_ = std::exchange(votes_, 0);
  at_barrier_ = 0;
  warps_run_ahead_ = random_.coin();
}

void Block::exchange(const char* kind, unsigned mask, void* mine, size_t bytes,
                     void (*combine)(unsigned, unsigned char*), const Site& site) {
  Thread& me = *current_;
  const unsigned bit = 1u << lane();
  if ((mask & bit) == 0) fail_thread("a warp function's mask leaves out the lane that calls it");
  auto& exchanges = warps_[me.id / warpSize].exchanges;
  auto found = std::ranges::find_if(exchanges, [&](const auto& e) {
    return e->kind == kind && e->mask == mask && e->arrived != mask;
  });
  if (found == exchanges.end())
    found = std::ranges::find_if(exchanges, [](const auto& e) { return e->left == e->mask; });
  if (found == exchanges.end())
    found = exchanges.insert(exchanges.end(), std::make_unique<Exchange>());
  Exchange& exchange = **found;
  if (exchange.left == exchange.mask) exchange.arrived = exchange.left = 0;
  exchange.kind = kind;
  exchange.mask = mask;
  exchange.arrived |= bit;
  unsigned char* slot = exchange.slots + Lanes<char>::kSlotBytes * lane();
  std::memcpy(slot, mine, bytes);
  me.state = State::kInExchange;
  me.waits_in = kind;
  me.site = site;
  if (exchange.arrived == mask) {
    combine(mask, exchange.slots);
    const int first = me.id - lane();
    Lanes<char>{mask, exchange.slots}.for_each([&](int lane) {
      threads_[first + lane].state = State::kReady;
      woken_.push_back(first + lane);
    });
  }
  wait();
  std::memcpy(mine, slot, bytes);
  exchange.left |= bit;
}

void Block::check_shared(const void* address, size_t bytes) const {
  const auto* first = static_cast<const unsigned char*>(address);
  const auto lies_in = [&](const unsigned char* begin, const unsigned char* end) {
    return first >= begin && first + bytes <= end;
  };
  if (!lies_in(shared_, shared_ + launch_->shared_bytes) &&
      std::none_of(static_arrays_.begin(), static_arrays_.end(),
                   [&](const auto& a) { return lies_in(a.second.begin(), a.second.end()); }))
    fail_thread("its address lies outside of the block's shared memory");
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0)
    fail_thread("its address in shared memory is not aligned");
}

void Block::copy_later(void* shared, const void* global, size_t bytes, size_t source_bytes) {
  check_shared(shared, bytes);
  if (reinterpret_cast<uintptr_t>(global) % bytes != 0)
    fail_thread("cp.async reads from an address that is not a multiple of its size");
  std::memset(shared, kPoison, bytes);
  current_->copies.push_back({shared, global, bytes, source_bytes, current_->copy_groups});
}

void Block::land_copies(int newest) {
  auto& copies = current_->copies;
  const int outstanding = current_->copy_groups - newest;
  auto copy = copies.begin();
  for (; copy != copies.end() && copy->group < outstanding; ++copy) {
    std::memcpy(copy->shared, copy->global, copy->source_bytes);
    std::memset(static_cast<char*>(copy->shared) + copy->source_bytes, 0,
                copy->bytes - copy->source_bytes);
  }
  copies.erase(copies.begin(), copy);
}

std::string Block::location() const {
  return fmt::format("kernel {}, block {}, thread {}", launch_->name, text(blockIdx),
                     text(current_->index));
}

std::string Block::describe(const Thread& thread) const {
  const std::string who = "thread " + text(thread.index);
  if (thread.state == State::kDone) return who + " has ended";
  return fmt::format("{} waits in {} at {}:{}", who, thread.waits_in, thread.site.file_name(),
                     thread.site.line());
}

// Nobody can run: names one thread that waits and one that it waits for.
void Block::fail_divergence() const {
  for (const Thread& thread : threads_) {
    if (thread.state != State::kInExchange) continue;
    const Warp& warp = warps_[thread.id / warpSize];
    const int lane = thread.id % warpSize, first = thread.id - lane;
    for (const auto& exchange : warp.exchanges) {
      const unsigned missing = exchange->mask & ~exchange->arrived;
      if (missing == 0 || (exchange->arrived >> lane & 1) == 0) continue;
      const int absent = first + std::countr_zero(missing);
      const bool exists = absent < static_cast<int>(threads_.size());
      throw Fault(
          fmt::format("kernel {}, block {}: divergence: {} for the lanes of mask {:#010x}, but {}",
                      launch_->name, text(blockIdx), describe(thread), exchange->mask,
                      exists ? describe(threads_[absent])
                             : fmt::format("lane {} does not exist", absent % warpSize)));
    }
  }
  const auto waits = std::ranges::find(threads_, State::kAtBarrier, &Thread::state);
  const auto other = std::ranges::find_if(
      threads_, [](const Thread& thread) { return thread.state != State::kAtBarrier; });
  throw Fault(fmt::format("kernel {}, block {}: divergent barrier: {}, but {}", launch_->name,
                          text(blockIdx), describe(*waits), describe(*other)));
}

void* dynamic_shared() { return running().shared(); }
void* static_shared(const void* key, size_t bytes) { return running().static_shared(key, bytes); }
void check_shared(const void* address, size_t bytes) { running().check_shared(address, bytes); }
void cp_async(void* shared, const void* global, size_t bytes, size_t source_bytes) {
  running().copy_later(shared, global, bytes, source_bytes);
}
void cp_async_commit() { running().commit_copies(); }
void cp_async_wait(int newest) { running().land_copies(newest); }
[[gnu::flatten]] Votes block_barrier(const char* kind, bool vote, const Site& site) {
  return running().barrier(kind, vote, site);
}
[[gnu::flatten]] void warp_collective(const char* kind, unsigned mask, void* mine, size_t bytes,
                                      void (*combine)(unsigned, unsigned char*), const Site& site) {
  running().exchange(kind, mask, mine, bytes, combine, site);
}
int lane_index() { return running().lane(); }
void fail_thread(const char* what) { throw Fault(running().location() + ": " + what); }

std::string running_location() { return running_block == nullptr ? "" : running_block->location(); }
void abandon_running(std::exception_ptr fault) { running_block->abandon(std::move(fault)); }

}  // namespace maxim_emulated

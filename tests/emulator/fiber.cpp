#include "tests/emulator/fiber.h"

#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace maxim_emulated {
namespace {

constexpr size_t kPage = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 * 1024;  // red zones around every local array
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif
constexpr size_t kColourBytes = 320;  // five cache lines, about what a waiting thread touches
constexpr int kColours = 64;

}  // namespace

using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

Fiber::Fiber(int colour) {
  const size_t colours = kColours * kColourBytes;
  size_ = kStackBytes + colours;
  void* mapping = mmap(nullptr, size_ + 2 * kPage, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<char*>(mapping);
  bottom_ = mapping_ + kPage;
  if (mprotect(mapping_ + kPage, size_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  top_ = mapping_ + kPage + size_ - colour % kColours * kColourBytes;
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
  unpoison();  // whoever is given these pages next
  munmap(mapping_, size_ + 2 * kPage);
}

// A function that was left in the middle leaves red zones around its locals.
void Fiber::unpoison() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(bottom_, size_);
#endif
}

void Fiber::restart(void (*entry)()) {
  unpoison();
  entry_ = entry;
  const size_t below = static_cast<size_t>(top_ - static_cast<const char*>(bottom_));
  place_ = make_fcontext(top_, below, [](transfer_t from) {
    arrive(from, nullptr);
    static_cast<Fiber**>(from.data)[1]->entry_();
  });
}

}  // namespace maxim_emulated

#include "tests/emulator/device_heap.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "emulated/emulator.h"
#include "tests/emulator/fault.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace maxim_emulated {
namespace {

constexpr size_t kReserved = size_t{1} << 40;
constexpr size_t kPage = 4096, kAlignment = 256;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr unsigned char kPoison = 0xff;
constexpr unsigned char kEndPattern = 0xfe;  // a NaN, too, but not what a copy of poison leaves

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t setting(const char* name, size_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

}  // namespace

DeviceHeap& DeviceHeap::instance() {
  static DeviceHeap* heap = new DeviceHeap;  // outlives every static that frees device memory
  return *heap;
}

DeviceHeap::DeviceHeap()
    : capacity_(setting("MAXIM_EMULATED_MEMORY", size_t{4} << 30)),
      opened_(setting("MAXIM_EMULATED_PROTECT", 1) != 0 ? 0 : 1) {
  void* range =
      mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw std::bad_alloc();
  begin_ = next_ = static_cast<char*>(range);
}

void* DeviceHeap::allocate(size_t bytes) {
  catch_access_faults();
  const size_t whole = round_up(bytes, kAlignment), mapped = round_up(whole, kPage);
  // Opening and closing costs 40 ns a page: a second for 1 GB in 10 steps, but for huge pages.
  if (mapped >= kHugePage) next_ += -reinterpret_cast<uintptr_t>(next_) % kHugePage;
  if (used_ + whole > capacity_ || next_ + mapped + kPage > begin_ + kReserved) return nullptr;
  const Allocation allocation = {bytes, next_, mapped};
  protect(allocation, true);
  madvise(next_, mapped, MADV_HUGEPAGE);
  char* address = next_ + mapped - whole;
  std::memset(next_, kPoison, mapped);
  std::memset(address + bytes, kEndPattern, whole - bytes);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(next_, mapped);
  ASAN_UNPOISON_MEMORY_REGION(address, bytes);
#endif
  protect(allocation, opened_ > 0);
  next_ += mapped + kPage;
  used_ += whole;
  allocations_.emplace(address, allocation);
  return address;
}

bool DeviceHeap::free(void* address) {
  const auto found = allocations_.find(static_cast<const char*>(address));
  if (found == allocations_.end()) return false;
  const Allocation& allocation = found->second;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(allocation.mapping, allocation.mapped);
#endif
  // A new mapping gives the pages back and forgets what they held.
  mmap(allocation.mapping, allocation.mapped, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  used_ -= round_up(allocation.bytes, kAlignment);
  allocations_.erase(found);
  return true;
}

bool DeviceHeap::reserved(const void* address) const {
  return address >= begin_ && address < begin_ + kReserved;
}

bool DeviceHeap::holds(const void* address, size_t bytes) const {
  const char* first = static_cast<const char*>(address);
  auto found = allocations_.upper_bound(first);
  if (found == allocations_.begin()) return false;
  --found;
  return first + bytes <= found->first + found->second.bytes;
}

std::string DeviceHeap::describe(const void* address) const {
  const char* where = static_cast<const char*>(address);
  if (!reserved(address)) return fmt::format("{}, which is not device memory", address);
  const auto behind = allocations_.upper_bound(where);
  if (behind != allocations_.begin()) {
    const auto& [start, allocation] = *std::prev(behind);
    const char* end = start + allocation.bytes;
    if (where < end)
      return fmt::format("{}, byte {} of an allocation of {} bytes", address, where - start,
                         allocation.bytes);
    if (where < end + 16 * kPage)
      return fmt::format("{}, {} bytes behind the end of an allocation of {} bytes", address,
                         where - end, allocation.bytes);
  }
  if (behind != allocations_.end())
    return fmt::format("{}, {} bytes ahead of an allocation of {} bytes", address,
                       behind->first - where, behind->second.bytes);
  return fmt::format("{}, device memory that is not allocated", address);
}

void DeviceHeap::protect(const Allocation& allocation, bool accessible) const {
  if (mprotect(allocation.mapping, allocation.mapped,
               accessible ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
    throw std::bad_alloc();
}

void DeviceHeap::open() {
  if (opened_++ == 0)
    for (const auto& [address, allocation] : allocations_) protect(allocation, true);
}

void DeviceHeap::close() {
  if (--opened_ > 0) return;
  for (const auto& [address, allocation] : allocations_) protect(allocation, false);
}

void DeviceHeap::check_ends([[maybe_unused]] const std::string& who) const {
#if !defined(__SANITIZE_ADDRESS__)
  for (const auto& [address, allocation] : allocations_) {
    const char* end = address + allocation.bytes;
    const char* last = allocation.mapping + allocation.mapped;
    const char* written = std::find_if(
        end, last, [](char c) { return static_cast<unsigned char>(c) != kEndPattern; });
    if (written != last)
      throw Fault(fmt::format("{} wrote {} bytes behind the end of an allocation of {} bytes", who,
                              written - end, allocation.bytes));
  }
#endif
}

}  // namespace maxim_emulated

// Device memory: a range of addresses of its own, of which only the live allocations can be
// touched, and those only while device work runs. Addresses are never used again.
//
// An allocation starts at a multiple of 256 bytes, as cudaMalloc's, and ends, rounded up to 256
// bytes, at a page without access. Under AddressSanitizer the last bytes are exact, too; without
// it they are filled with a pattern that is checked after every kernel.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace maxim_emulated {

// Not thread-safe: its users hold the device's lock.
class DeviceHeap {
 public:
  static DeviceHeap& instance();

  // Null if the emulated device is full (MAXIM_EMULATED_MEMORY bytes, 4 GiB if not set).
  void* allocate(size_t bytes);
  // False if `address` is not the start of an allocation.
  bool free(void* address);
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }

  // Is it an address of the device, allocated or not?
  bool reserved(const void* address) const;
  // Do all of the bytes lie in one allocation?
  bool holds(const void* address, size_t bytes) const;
  // The address and how it lies to the nearest allocation, for reports.
  std::string describe(const void* address) const;

  // Opens all allocations to the processor, and closes them again when each open() has met its
  // close(). MAXIM_EMULATED_PROTECT=0: they are never closed.
  void open();
  void close();
  // Throws a Fault that blames `who` if bytes behind the end of an allocation were written.
  void check_ends(const std::string& who) const;

 private:
  struct Allocation {
    size_t bytes;
    char* mapping;  // whole pages
    size_t mapped;
  };
  DeviceHeap();
  void protect(const Allocation& allocation, bool accessible) const;

  std::map<const char*, Allocation> allocations_;
  char* begin_ = nullptr;
  char* next_ = nullptr;
  size_t used_ = 0, capacity_ = 0;
  int opened_ = 0;
};

// Device memory can be touched while this lives.
struct DeviceAccess {
  DeviceAccess() { DeviceHeap::instance().open(); }
  ~DeviceAccess() { DeviceHeap::instance().close(); }
  DeviceAccess(const DeviceAccess&) = delete;
};

}  // namespace maxim_emulated

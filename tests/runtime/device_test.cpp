#include "runtime/device.h"

#include <cstring>

#include "tests/catch.h"
#include "tests/reference/message_of.h"

using namespace maxim;
using maxim_tests::require_message;

namespace {

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 256 == 0; }

}  // namespace

TEST_CASE("host memory: aligned, counted, freed once", "[device]") {
  HostDevice device;
  void* a = device.allocate(1, "a");
  void* b = device.allocate(1 << 20, "b");
  void* none = device.allocate(0, "nothing");  // zero bytes are a block of their own
  CHECK(aligned(a));
  CHECK(aligned(b));
  CHECK(none != nullptr);
  CHECK(device.allocations() == 3);
  std::memset(b, 1, 1 << 20);
  device.free(b);
  device.free(nullptr);
  require_message<Error>([&] { device.free(b); }, {"was not allocated"});
  require_message<Error>([&] { device.allocate(int64_t{1} << 60, "the weights"); },
                         {"the weights", "1152921504606846976 bytes"});
}

TEST_CASE("copies in, out and between", "[device]") {
  HostDevice device;
  DeviceTensor a(device, DType::f32, 4, "a"), b(device, DType::f32, 4, "b");
  const std::vector<float> source{1, 2, 3, 4};
  device.copy_in(a.view(), source.data());
  device.copy(b.view(), a.view());
  device.zero(b.view().slice(1, 2));
  std::vector<float> out(4);
  device.copy_out(out.data(), b.view());
  CHECK(out == std::vector<float>{1, 0, 3, 4});
  device.copy(b.view().slice(1, 4), b.view().slice(0, 3));  // ranges may overlap
  device.copy_out(out.data(), b.view());
  CHECK(out == std::vector<float>{1, 1, 0, 3});
  require_message<Error>([&] { device.copy(a.view(), b.view().slice(0, 3)); }, {"12 bytes", "16"});
  device.copy_in(Tensor(), nullptr);  // nothing to do is legal
}

TEST_CASE("a device tensor moves and frees once", "[device]") {
  HostDevice device;
  DeviceTensor a(device, DType::i32, 3, "a");
  void* pointer = a.view().data();
  DeviceTensor b(std::move(a));
  CHECK(b.view().data() == pointer);
  DeviceTensor c;
  c = std::move(b);
  CHECK(c.view().data() == pointer);
  CHECK(c.view().size() == 3);
}

TEST_CASE("an arena bumps, marks and remembers its peak", "[device]") {
  HostDevice device;
  Arena arena(device, 1000, "step arena");  // rounded up to 1024
  CHECK(arena.capacity() == 1024);
  const int64_t allocations = device.allocations();
  const Tensor a = arena.take(DType::f32, 3, "a");
  const Tensor none = arena.take(DType::f32, 0, 8, "no rows");
  CHECK(aligned(a.data()));
  CHECK(none.empty());
  CHECK(none.cols() == 8);
  CHECK(arena.used() == 256);
  {
    const Arena::Mark mark(arena);
    const Tensor b = arena.take(DType::u16, 2, 128, "b");
    CHECK(static_cast<char*>(b.data()) == static_cast<char*>(a.data()) + 256);
    CHECK(arena.used() == 768);
  }
  CHECK(arena.used() == 256);
  CHECK(arena.peak() == 768);
  require_message<Error>([&] { arena.take(DType::f32, 193, "c"); },
                         {"step arena is too small", "772 bytes", "for c", "768 of 1024"});
  arena.take(DType::f32, 192, "all that is left");
  arena.reset();
  CHECK(arena.used() == 0);
  CHECK(device.allocations() == allocations);
}

// Planted faults of kernels, each of which the emulator must catch and place.
#include <cuda_runtime.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"
#include "tests/emulator/forked.h"

namespace maxim_tests {
namespace {

using maxim_emulated::Fault;

constexpr unsigned kAll = 0xffffffff;

void barrier_in_branch() {
  if (threadIdx.x < 40) __syncthreads();
}
void barriers_at_two_places() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}
void shuffle_in_branch(int* out) {
  int value = 1;
  if (threadIdx.x % 32 != 5) value = __shfl_xor_sync(kAll, value, 1);
  *out = value;
}
void shuffle_whole_warp(int* out) { *out = __shfl_xor_sync(kAll, 1, 1); }
void shuffle_against_barrier(int* out) {
  if (threadIdx.x == 7) __syncthreads();
  *out = __shfl_sync(kAll, 1, 0);
  if (threadIdx.x != 7) __syncthreads();
}
void collectives_of_two_kinds(int* out) {
  *out = threadIdx.x < 16 ? __any_sync(kAll, 1) : __all_sync(kAll, 1);
}
void mask_without_caller(int* out) { *out = __shfl_sync(0xffff, 1, 0); }
void source_outside_mask(int* out) {
  if (threadIdx.x < 16) *out = __shfl_sync(0xffff, 1, 20);
}
void read_far(const float* in, float* out, int distance) {
  if (threadIdx.x == 3 && blockIdx.x == 2) out[0] = in[distance];
}
void write_far(float* out, int distance) {
  if (threadIdx.x == 3 && blockIdx.x == 2) out[distance] = 1;
}
#if defined(__SANITIZE_ADDRESS__)
void write_at(float* out, int distance) { out[distance] = 1; }
#else
void overflow_stack(int* out) {
  volatile int large[40000];
  for (int i = 39999; i >= 0; i -= 100) large[i] = i;
  *out = large[0];
}
#endif
void read_shared(float* out, int byte) {
  out[threadIdx.x] = static_cast<float*>(maxim_emulated::dynamic_shared())[byte / 4];
}
// Each thread writes its word of two static arrays and reads its neighbour's, and what was there.
template <int array>
float* static_floats() {
  static char key;
  return static_cast<float*>(maxim_emulated::static_shared(&key, 64 * sizeof(float)));
}
void use_static(float* before, float* behind) {
  const unsigned id = blockIdx.x * 64 + threadIdx.x;
  before[id] = static_floats<0>()[threadIdx.x];
  __syncthreads();
  static_floats<0>()[threadIdx.x] = static_cast<float>(id);
  static_floats<1>()[threadIdx.x] = -1;
  __syncthreads();
  behind[id] = static_floats<0>()[63 - threadIdx.x];
}
void write_static(int place) { static_cast<volatile float*>(static_floats<0>())[place] = 1; }

void write_shared(int byte) {
  static_cast<volatile char*>(maxim_emulated::dynamic_shared())[byte] = 1;
}
void trap() {
  if (threadIdx.x == 1) __trap();
}
void count_up(int* counter) { atomicAdd(counter, 1); }

// The text of the Fault that waiting for the launch throws.
template <class... Parameters, class... Arguments>
std::string fault_of(const Shape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  launch(shape, kernel, arguments...);
  try {
    cudaStreamSynchronize(test_stream());
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

// Some of the words that a report must have.
void require_words(const std::string& text, const std::vector<std::string>& words) {
  INFO(text);
  for (const std::string& word : words) {
    INFO(word);
    REQUIRE(text.find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a barrier that not all threads reach is reported") {
  require_words(fault_of({.grid = 2, .block = 64}, barrier_in_branch),
                {"barrier_in_branch", "block (", "divergent barrier", "waits in __syncthreads",
                 "fault_test.cpp", "has ended"});
  require_words(fault_of({.grid = 1, .block = 64}, barriers_at_two_places),
                {"barriers_at_two_places", "divergent barrier"});
}

TEST_CASE("a warp function that not all lanes reach is reported") {
  const DeviceBuffer<int> out(1);
  const Shape shape = {.grid = 1, .block = 64};
  require_words(fault_of(shape, shuffle_in_branch, out.data()),
                {"shuffle_in_branch", "__shfl_xor_sync", "mask 0xffffffff", "(5, 0, 0) has ended"});
  require_words(fault_of({.grid = 1, .block = 32}, shuffle_against_barrier, out.data()),
                {"__shfl_sync", "(7, 0, 0) waits in __syncthreads"});
  require_words(fault_of(shape, collectives_of_two_kinds, out.data()),
                {"divergence", "__any_sync", "__all_sync"});
  require_words(fault_of(shape, mask_without_caller, out.data()), {"thread (", "mask leaves out"});
  require_words(fault_of(shape, source_outside_mask, out.data()), {"thread (", "mask leaves out"});
  require_words(fault_of({.grid = 1, .block = 20}, shuffle_whole_warp, out.data()),
                {"lane 20 does not exist"});
}

TEST_CASE("accesses outside of every allocation are reported with their thread") {
  const DeviceBuffer<float> buffer(64);
  const Shape shape = {.grid = 4, .block = 32};
  const std::vector<std::string> place = {"block (2, 0, 0), thread (3, 0, 0)", "64 bytes behind",
                                          "256 bytes"};
  require_words(fault_of(shape, read_far, buffer.data(), buffer.data(), 64 + 16), place);
  require_words(fault_of(shape, write_far, buffer.data(), 64 + 16), place);
  require_words(fault_of(shape, write_far, buffer.data(), 1 << 28), {"write_far", "thread (3"});
}

TEST_CASE("after a fault the emulator goes on") {
  const DeviceBuffer<int> counter(std::vector<int>{0});
  require_words(fault_of({.grid = 1, .block = 64}, barrier_in_branch), {"divergent"});
  launch({.grid = 3, .block = 64}, count_up, counter.data());
  REQUIRE(counter.to_host()[0] == 192);
}

TEST_CASE("what is written behind static shared memory is a fault of its thread") {
  require_words(fault_of({.grid = 1, .block = 1}, write_static, 64),
                {"write_static", "thread (0, 0, 0)"});
}

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("AddressSanitizer stops at the first byte behind an allocation or shared memory") {
  const DeviceBuffer<float> buffer(10);
  const Shape one_thread = {.grid = 1, .block = 1, .shared_bytes = 1000};
  const Outcome global = in_a_child([&] { fault_of(one_thread, write_at, buffer.data(), 10); });
  require_words(global.errors,
                {"kernel write_at, block (0, 0, 0), thread (0, 0, 0)", "AddressSan"});
  const Outcome shared = in_a_child([&] { fault_of(one_thread, write_shared, 1000); });
  require_words(shared.errors, {"kernel write_shared", "AddressSanitizer"});
}
#else
TEST_CASE("what is written just behind an allocation is reported after the kernel") {
  const DeviceBuffer<float> buffer(10);
  require_words(fault_of({.grid = 4, .block = 32}, write_far, buffer.data(), 10),
                {"write_far", "behind the end of an allocation of 40 bytes"});
}

TEST_CASE("what is written behind shared memory is reported") {
  require_words(fault_of({.grid = 1, .block = 1, .shared_bytes = 1000}, write_shared, 1000),
                {"write_shared", "block (0, 0, 0)", "behind the end of its 1000 bytes"});
  require_words(fault_of({.grid = 1, .block = 1, .shared_bytes = 1000}, write_shared, 1024),
                {"write_shared", "thread (0, 0, 0)"});
}

TEST_CASE("a stack that overflows is reported") {
  const DeviceBuffer<int> out(1);
  require_words(fault_of({.grid = 1, .block = 1}, overflow_stack, out.data()), {"overflow_stack"});
}
#endif

TEST_CASE("shared and global memory that nobody has written is NaN") {
  const DeviceBuffer<float> out(32), fresh(4);
  launch({.grid = 1, .block = 32, .shared_bytes = 16}, read_shared, out.data(), 8);
  for (const float value : out.to_host()) REQUIRE(std::isnan(value));
  for (const float value : fresh.to_host()) REQUIRE(std::isnan(value));
}

TEST_CASE("static shared memory is a block's own, and NaN when the block starts") {
  const int blocks = 20;
  const DeviceBuffer<float> before(64 * blocks), behind(64 * blocks);
  launch({.grid = blocks, .block = 64}, use_static, before.data(), behind.data());
  const std::vector<float> first = before.to_host(), last = behind.to_host();
  for (int i = 0; i < 64 * blocks; ++i) {
    REQUIRE(std::isnan(first[i]));
    REQUIRE(last[i] == static_cast<float>(i / 64 * 64 + 63 - i % 64));
  }
}

TEST_CASE("__trap is a fault of its thread") {
  require_words(fault_of({.grid = 1, .block = 2}, trap), {"thread (1, 0, 0)", "__trap"});
}

TEST_CASE("host code that touches device memory is stopped and told so") {
  const DeviceBuffer<float> buffer(std::vector<float>(16, 1));  // opened by a copy, and closed
  const Outcome outcome = in_a_child([&] {
    volatile float value = buffer.data()[3];
    (void)value;
  });
  INFO(outcome.errors);
  REQUIRE(!outcome.exited);
  REQUIRE(outcome.errors.find("host code accesses device memory") != std::string::npos);
}

}  // namespace maxim_tests

// Warp functions, votes and atomics against what the CUDA manual says, lane by lane.
#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"

namespace maxim_tests {
namespace {

constexpr unsigned kAll = 0xffffffff;
constexpr int kWidths[] = {1, 2, 4, 8, 16, 32};

int deposit(int lane) { return 100 + lane * lane; }

enum Shuffle { kIndex, kXor, kUp, kDown };

void shuffle_by(int kind, int argument, int width, int* out) {
  const int value = deposit(static_cast<int>(threadIdx.x));
  int got = 0;
  if (kind == kIndex) got = __shfl_sync(kAll, value, argument, width);
  if (kind == kXor) got = __shfl_xor_sync(kAll, value, argument, width);
  if (kind == kUp) got = __shfl_up_sync(kAll, value, argument, width);
  if (kind == kDown) got = __shfl_down_sync(kAll, value, argument, width);
  out[threadIdx.x] = got;
}

// The manual: groups of `width` lanes; a lane whose source lies outside of its group keeps its own
// value, but an index counts modulo the width, and xor may reach into earlier groups.
int source_lane(int kind, int argument, int width, int lane) {
  const int first = lane / width * width, last = first + width - 1;
  if (kind == kIndex) return first + argument % width;
  if (kind == kUp) return lane - argument >= first ? lane - argument : lane;
  if (kind == kDown) return lane + argument <= last ? lane + argument : lane;
  return (lane ^ argument) <= last ? lane ^ argument : lane;
}

// Each half of the warp on its own, the upper one twice as often.
void halves(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned mask = lane < 16 ? 0x0000ffff : 0xffff0000;
  int sum = lane;
  for (int round = 0; round < (lane < 16 ? 1 : 2); ++round) sum = __reduce_add_sync(mask, sum);
  out[lane] = sum;
}

void collect(int* out, unsigned* bits) {
  const int lane = static_cast<int>(threadIdx.x);
  bits[lane] = __ballot_sync(kAll, lane % 3 == 0);
  bits[32 + lane] = __match_any_sync(kAll, lane % 5);
  bits[64 + lane] = __reduce_max_sync(kAll, static_cast<unsigned>(lane) - 3);
  bits[96 + lane] = __reduce_min_sync(kAll, static_cast<unsigned>(lane) - 3);
  out[lane] = __any_sync(kAll, lane == 31) + 2 * __any_sync(kAll, 0) + 4 * __all_sync(kAll, 1) +
              8 * __all_sync(kAll, lane != 31);
  out[32 + lane] = __reduce_max_sync(kAll, lane - 3);
  out[64 + lane] = __reduce_min_sync(kAll, lane - 3);
  __syncwarp();
  out[96 + lane] = __syncthreads_count(lane < 7) + 100 * (__syncthreads_or(lane == 2) != 0) +
                   1000 * (__syncthreads_and(lane == 2) != 0);
}

void atomics(int* out, unsigned long long* wide) {
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(out, thread);
  atomicMax(out + 1, thread);
  atomicMin(out + 2, -thread);
  atomicOr(out + 3, 1 << thread % 30);
  if (atomicCAS(out + 4, 0, thread + 1) == 0) atomicAdd(out + 5, 1);
  atomicAdd(wide, 1ull << 40);
}

void numbering(int* out) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  atomicAdd(out + block * blockDim.x * blockDim.y * blockDim.z + thread, 1);
}

}  // namespace

TEST_CASE("shuffles of every kind and width") {
  const DeviceBuffer<int> out(32);
  for (const int kind : {kIndex, kXor, kUp, kDown})
    for (const int width : kWidths)
      for (const int argument : {0, 1, 3, 7, 16, 31}) {
        launch({.grid = 1, .block = 32}, shuffle_by, kind, argument, width, out.data());
        const std::vector<int> found = out.to_host();
        for (int lane = 0; lane < 32; ++lane) {
          INFO("kind " << kind << " width " << width << " argument " << argument << " lane "
                       << lane);
          REQUIRE(found[lane] == deposit(source_lane(kind, argument, width, lane)));
        }
      }
}

TEST_CASE("parts of a warp act apart") {
  const DeviceBuffer<int> out(32);
  for (uint64_t seed = 1; seed < 6; ++seed) {
    maxim_emulated::set_seed(seed);
    launch({.grid = 1, .block = 32}, halves, out.data());
    const std::vector<int> found = out.to_host();
    REQUIRE(found[3] == 120);
    REQUIRE(found[20] == 16 * 376);
  }
}

TEST_CASE("votes and reductions") {
  const DeviceBuffer<int> out(128);
  const DeviceBuffer<unsigned> bits(128);
  launch({.grid = 1, .block = 32}, collect, out.data(), bits.data());
  const std::vector<int> found = out.to_host();
  const std::vector<unsigned> found_bits = bits.to_host();
  for (int lane = 0; lane < 32; ++lane) {
    unsigned thirds = 0, equal = 0;
    for (int other = 0; other < 32; ++other) {
      thirds |= unsigned(other % 3 == 0) << other;
      equal |= unsigned(other % 5 == lane % 5) << other;
    }
    REQUIRE(found_bits[lane] == thirds);
    REQUIRE(found_bits[32 + lane] == equal);
    REQUIRE(found_bits[64 + lane] == 0xffffffff);
    REQUIRE(found_bits[96 + lane] == 0);
    REQUIRE(found[lane] == 1 + 4);
    REQUIRE(found[32 + lane] == 28);
    REQUIRE(found[64 + lane] == -3);
    REQUIRE(found[96 + lane] == 107);
  }
}

TEST_CASE("integer atomics between blocks that run in parallel") {
  const DeviceBuffer<int> out(std::vector<int>(6, 0));
  const DeviceBuffer<unsigned long long> wide(std::vector<unsigned long long>{0});
  launch({.grid = 200, .block = 100}, atomics, out.data(), wide.data());
  const std::vector<int> found = out.to_host();
  REQUIRE(found[0] == 20000 / 2 * 19999);
  REQUIRE(found[1] == 19999);
  REQUIRE(found[2] == -19999);
  REQUIRE(found[3] == (1 << 30) - 1);
  REQUIRE((found[4] >= 1 && found[4] <= 20000));
  REQUIRE(found[5] == 1);
  REQUIRE(wide.to_host()[0] == 20000ull << 40);
}

TEST_CASE("every thread of every block runs once, in three dimensions") {
  const DeviceBuffer<int> out(std::vector<int>(3 * 4 * 5 * 6 * 7 * 2, 0));
  launch({.grid = {3, 4, 5}, .block = {6, 7, 2}}, numbering, out.data());
  for (const int count : out.to_host()) REQUIRE(count == 1);
}

TEST_CASE("bit and arithmetic intrinsics") {
  REQUIRE(__umulhi(0x80000001, 6) == 3);
  REQUIRE(__popc(0xf0f0) == 8);
  REQUIRE((__ffs(0) == 0 && __ffs(8) == 4));
  REQUIRE((__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0));
  REQUIRE(__brev(0x80000001) == 0x80000001);
  REQUIRE(__brev(6) == 0x60000000);
  REQUIRE(__float_as_uint(-2.f) == 0xc0000000);
  REQUIRE(__uint_as_float(0x3f800000) == 1);
  REQUIRE((rsqrtf(4) == 0.5f && __fdividef(1, 4) == 0.25f && __frcp_rn(8) == 0.125f));
  REQUIRE((min(-1, 2) == -1 && max(-1, 2) == 2 && min(1u, 2u) == 1u && max(1.f, 2.f) == 2.f));
}

}  // namespace maxim_tests

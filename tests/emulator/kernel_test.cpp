// The emulator proper: threads, barriers, warps, shared memory, and each fault that it must catch.
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"

namespace maxim_tests {
namespace {

float* shared_floats() { return static_cast<float*>(maxim_emulated::dynamic_shared()); }

// Sums a row: warps by shuffles, their sums through shared memory. `barrier` false is the fault.
template <bool barrier>
void row_sums(const float* rows, float* sums, int width) {
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += rows[blockIdx.x * width + i];
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  if (threadIdx.x % 32 == 0) shared_floats()[threadIdx.x / 32] = sum;
  if (barrier) __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += shared_floats()[warp];
    sums[blockIdx.x] = total;
  }
}

// The place of each thread in the order before a barrier, and in that behind it.
void places(int* before, int* behind, int* counters) {
  before[threadIdx.x] = atomicAdd(counters, 1);
  __syncthreads();
  behind[threadIdx.x] = atomicAdd(counters + 1, 1);
}

struct Places {
  std::vector<int> before, behind;
  bool operator==(const Places&) const = default;
};
Places run_places(uint64_t seed) {
  maxim_emulated::set_seed(seed);
  const DeviceBuffer<int> before(64), behind(64), counters(std::vector<int>{0, 0});
  launch({.grid = 1, .block = 64}, places, before.data(), behind.data(), counters.data());
  return {before.to_host(), behind.to_host()};
}

template <bool barrier>
std::vector<float> run_row_sums(uint64_t seed) {
  maxim_emulated::set_seed(seed);
  const int rows = 20, width = 300;
  std::vector<float> values(rows * width);
  std::iota(values.begin(), values.end(), 0.5f);
  const DeviceBuffer<float> input(values), sums(rows);
  launch({.grid = rows, .block = 128, .shared_bytes = 16}, row_sums<barrier>, input.data(),
         sums.data(), width);
  return sums.to_host();
}

}  // namespace

TEST_CASE("a kernel with shuffles and a barrier gives the same bits under every seed") {
  const std::vector<float> first = run_row_sums<true>(1);
  for (int row = 0; row < 20; ++row) {
    const double middle = row * 300 + 150;  // mean of i + 0.5
    REQUIRE(first[row] == Approx(300 * middle).epsilon(1e-6));
  }
  for (uint64_t seed = 2; seed < 8; ++seed) REQUIRE(run_row_sums<true>(seed) == first);
}

TEST_CASE("threads run in an order of the seed's, another one behind each barrier") {
  const Places first = run_places(1);
  REQUIRE(run_places(1) == first);
  REQUIRE(first.before != first.behind);
  REQUIRE(run_places(2).before != first.before);
  REQUIRE(run_places(2).behind != first.behind);
}

TEST_CASE("a missing barrier gives different results under different seeds") {
  int different = 0;
  const std::vector<float> right = run_row_sums<true>(1);
  for (uint64_t seed = 1; seed < 8; ++seed) {
    const std::vector<float> sums = run_row_sums<false>(seed);
    different += std::memcmp(sums.data(), right.data(), sums.size() * sizeof(float)) != 0;
  }
  REQUIRE(different == 7);
}

}  // namespace maxim_tests

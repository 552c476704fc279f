// Random data for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace maxim_tests {

// `count` numbers in [-scale, scale), a Philox function of (seed, index).
std::vector<float> random_floats(int64_t count, uint32_t seed, float scale = 1);
// `count` integers in [0, bound).
std::vector<int32_t> random_integers(int64_t count, int32_t bound, uint32_t seed);

// Numbers drawn one after another, for random damage to files.
class RandomStream {
 public:
  explicit RandomStream(uint32_t seed) : seed_(seed) {}
  uint32_t below(std::size_t bound);  // in [0, bound)

 private:
  uint32_t seed_;
  int64_t drawn_ = 0;
};

}  // namespace maxim_tests

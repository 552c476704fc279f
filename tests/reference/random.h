// Random data for tests.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

// `count` numbers in [-scale, scale), a Philox function of (seed, index).
std::vector<float> random_floats(int64_t count, uint32_t seed, float scale = 1);
// `count` integers in [0, bound).
std::vector<int32_t> random_integers(int64_t count, int32_t bound, uint32_t seed);

}  // namespace maxim_tests

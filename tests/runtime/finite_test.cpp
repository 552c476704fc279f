#include "runtime/finite.h"

#include <limits>
#include <vector>

#include "tests/catch.h"

TEST_CASE("NaN and infinity are found at any place and alignment", "[finite]") {
  using Limits = std::numeric_limits<float>;
  std::vector<float> values(37, -Limits::max());
  values[3] = Limits::denorm_min();
  values[5] = -0.0f;
  CHECK(maxim::all_finite(values.data(), 37));
  CHECK(maxim::all_finite(nullptr, 0));
  for (const float bad : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::signaling_NaN(),
                          Limits::infinity(), -Limits::infinity()})
    for (const size_t place : {0, 8, 36}) {
      std::vector<float> broken = values;
      broken[place] = bad;
      CHECK_FALSE(maxim::all_finite(broken.data(), 37));
      std::vector<char> shifted(1 + 37 * sizeof(float));
      std::memcpy(shifted.data() + 1, broken.data(), 37 * sizeof(float));
      CHECK_FALSE(maxim::all_finite(shifted.data() + 1, 37));
    }
}

#include "kernels/cpu/vector_math.h"

#include <bit>
#include <cmath>
#include <limits>

#include "tests/catch.h"
#include "tests/reference/compare.h"

using namespace maxim_tests;
using maxim::Floats;
using maxim::kLanes;

namespace {

// f(x, lane) on a sample of all bit patterns: every 4,001st float, NaNs and infinities included.
template <class F>
void for_sampled_floats(F&& f) {
  for (uint64_t begin = 0; begin < (uint64_t{1} << 32); begin += uint64_t{4001} * kLanes) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i)
      lanes[i] = std::bit_cast<float>(static_cast<uint32_t>(begin + uint64_t{4001} * i));
    f(maxim::load(lanes));
  }
}

}  // namespace

TEST_CASE(
    "exp: within 1.2e-7 of the truth on all floats, 0 below -87.33654, infinite above 88.72283") {
  double worst = 0, at = 0;
  int wrong = 0;
  const auto check = [&](float x, float y) {
    if (std::isnan(x)) {
      wrong += !std::isnan(y);
    } else if (x < -87.33654f) {
      wrong += y != 0;
    } else if (x > 88.72283f) {
      wrong += y != std::numeric_limits<float>::infinity();
    } else {
      const double want = std::exp(static_cast<double>(x)), error = std::abs(y - want) / want;
      if (error > worst || std::isnan(error)) worst = error, at = x;
    }
  };
  for_sampled_floats([&](Floats x) {
    const Floats y = maxim::exp(x);
    for (int i = 0; i < kLanes; ++i) check(x[i], y[i]);
  });
  for (const float x : {0.0f, -0.0f, -87.33654f, 88.72283f, -87.34f, 88.73f, 1.0f, -1e-30f,
                        -std::numeric_limits<float>::infinity()})
    check(x, maxim::exp(maxim::broadcast(x))[0]);
  INFO("largest relative error " << worst << " at " << at);
  CHECK(worst < 1.2e-7);
  CHECK(wrong == 0);
  CHECK(maxim::exp(Floats{})[0] == 1.0f);
}

TEST_CASE("normal: density and cdf within 6e-8 and 3e-7 of the truth on all floats") {
  double worst_density = 0, worst_cdf = 0;
  for_sampled_floats([&](Floats x) {
    const maxim::Normal n = maxim::normal(x);
    for (int i = 0; i < kLanes; ++i) {
      if (std::isnan(x[i])) continue;
      const double v = x[i];
      worst_density = std::max(worst_density,
                               std::abs(n.density[i] - std::exp(-v * v / 2) / std::sqrt(2 * M_PI)));
      worst_cdf = std::max(worst_cdf, std::abs(n.cdf[i] - std::erfc(-v / std::sqrt(2.0)) / 2));
    }
  });
  CHECK(worst_density < 6e-8);
  CHECK(worst_cdf < 3e-7);
}

TEST_CASE("sums and maxima over lanes; parts of vectors") {
  std::vector<float> x(3 * kLanes);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
  CHECK(maxim::sum_of_lanes(maxim::load(x.data())) == kLanes * (kLanes + 1) / 2.0f);
  CHECK(maxim::max_of_lanes(-maxim::load(x.data())) == -1.0f);
  for (int64_t size = 0; size <= 2 * kLanes + 1; ++size) {
    std::vector<float> y(3 * kLanes, -1.0f);
    float total = 0;
    maxim::for_each_vector(size, [&](int64_t i, auto v) {
      v.store(&y[i], v.load(&x[i]) + 1.0f);
      total += maxim::sum_of_lanes(v.keep(v.load(&x[i]) + 1.0f));
    });
    float want = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
      if (y[i] != (i < size ? x[i] + 1 : -1)) FAIL("element " << i << " of " << size);
      if (i < size) want += x[i] + 1;
    }
    CHECK(total == want);
  }
}

TEST_CASE("dropout bits are those of the scalar definition") {
  const maxim::Dropout dropout{0.1f, 0xFEDCBA9876543210ull, 0x89ABCDEFu, 0xFFFFu};
  for (const int64_t count : {1, 7, 8, 9, 63, 64, 65, 384, 1000})
    for (const uint32_t first_group : {0u, 3u << 16, 11u << 16 | 5u}) {
      std::vector<uint16_t> bits((count + maxim::kDropoutChunk - 1) / maxim::kDropoutChunk *
                                 maxim::kDropoutChunk);
      maxim::draw_dropout_bits(bits.data(), count, dropout, 0xFFFFFFF0u, 2, 511, first_group);
      for (int64_t i = 0; i < count; ++i) {
        const auto group = first_group + static_cast<uint32_t>(i / 8);
        const maxim::Philox4 want = maxim::dropout_bits(dropout.seed, dropout.step, dropout.site,
                                                        0xFFFFFFF0u, 2, 511, group);
        if (bits[i] != maxim::dropout_bits_of(want, static_cast<int>(i % 8)))
          FAIL("element " << i << " of " << count << ", first group " << first_group);
      }
    }
  SUCCEED();
}

TEST_CASE("a dropped infinity is 0; what is kept is scaled") {
  for (const float probability : {0.1f, 0.5f, 0.99f}) {
    const maxim::DropoutMask mask(probability);
    const uint32_t threshold = maxim::dropout_threshold(probability);
    std::vector<uint16_t> bits(kLanes, static_cast<uint16_t>(threshold - 1));
    bits[1] = static_cast<uint16_t>(threshold);
    bits[2] = 0xFFFF;
    const Floats y =
        mask.apply(maxim::broadcast(std::numeric_limits<float>::infinity()), bits.data());
    CHECK(y[0] == 0.0f);
    CHECK(y[1] == std::numeric_limits<float>::infinity());
    const Floats z = mask.apply(maxim::broadcast(3.0f), bits.data());
    CHECK(z[2] == 3.0f * maxim::dropout_scale(probability));
  }
}

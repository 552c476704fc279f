#include "tests/reference/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/catch.h"

namespace maxim_tests {
namespace {

std::string place(int64_t index, int64_t columns) {
  if (columns <= 0) return fmt::format("[{}]", index);
  return fmt::format("[{}, {}]", index / columns, index % columns);
}

// How far beyond its bound an element is: <= 1 is good. A NaN on one side only is infinitely bad.
double excess(double got, double want, double bound) {
  if (std::isnan(want) || std::isnan(got))
    return std::isnan(want) && std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
  if (got == want) return 0;  // equal infinities too
  const double difference = std::abs(got - want);
  if (bound > 0 && std::isfinite(difference)) return difference / bound;
  return std::numeric_limits<double>::infinity();
}

}  // namespace

void require_close(const std::string& what, const std::vector<float>& got,
                   const std::vector<double>& want, double absolute, double relative,
                   int64_t columns) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  int64_t worst = 0;
  double worst_excess = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(want[i])) largest = std::max(largest, std::abs(want[i]));
    const double e = excess(got[i], want[i], absolute + relative * std::abs(want[i]));
    if (e > worst_excess) {
      worst_excess = e;
      worst = static_cast<int64_t>(i);
    }
  }
  if (relative > 1e-2 || (largest > 0 && absolute > 1e-2 * largest))
    FAIL(fmt::format("{}: the bound {} + {} |want| is meaningless for values up to {}", what,
                     absolute, relative, largest));
  if (worst_excess > 1)
    FAIL(fmt::format("{}{}: got {:.9g}, want {:.9g}, difference {:.3g}, bound {:.3g}", what,
                     place(worst, columns), got[worst], want[worst], got[worst] - want[worst],
                     absolute + relative * std::abs(want[worst])));
  SUCCEED();
}

void require_same_bits(const std::string& what, const std::vector<float>& got,
                       const std::vector<float>& want) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i)
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]))
      FAIL(fmt::format("{}[{}]: bits differ: {:.9g} and {:.9g}", what, i, got[i], want[i]));
  SUCCEED();
}

}  // namespace maxim_tests

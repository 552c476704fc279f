#include <algorithm>
#include <cmath>

#include "bench/kernels/operations.h"

namespace maxim::bench {
namespace {

// Relative to the largest magnitude.
double tolerance(DType type) {
  switch (type) {
    case DType::f32:
      return 64 * std::ldexp(1, -24);
    case DType::bf16:
      return 2.5 * std::ldexp(1, -8);
    case DType::f16:
      return 2.5 * std::ldexp(1, -11);
    default:
      return 0;  // whole numbers
  }
}

// An error without a bound, so that NaN exceeds it.
double error_of(double got, double want) {
  const double error = std::abs(got - want);
  return std::isnan(error) ? HUGE_VAL : error;
}

}  // namespace

std::string difference(const Operands& operands, const std::vector<Expected>& all,
                       DType precision) {
  for (const Expected& output : all) {
    const std::vector<double> got = operands.get(output.tensor);
    const std::vector<double>& want = output.values;
    MAXIM_CHECK(got.size() == want.size(), "{}: {} elements, {} expected", output.name, got.size(),
                want.size());
    double largest = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      if (error_of(got[i], want[i]) > worst) worst = error_of(got[i], want[i]), at = i;
    }
    const bool whole = tolerance(output.tensor.dtype()) == 0;
    const double bound =
        whole ? 0 : largest * std::max(tolerance(precision), tolerance(output.tensor.dtype()));
    if (worst > bound)
      return fmt::format("{}[{}] is {:.9g}, want {:.9g} within {:.3g}", output.name, at, got[at],
                         want[at], bound);
  }
  return "";
}

}  // namespace maxim::bench

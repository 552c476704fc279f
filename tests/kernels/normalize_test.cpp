#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/central_difference.h"
#include "tests/reference/compare.h"
#include "tests/reference/normalize.h"

using namespace maxim_tests;

namespace {

struct Results {
  std::vector<float> y, norm, d_x;
};

Results run(Backend& backend, const std::vector<float>& x, const std::vector<float>& d_y,
            int64_t columns, bool in_place = false, maxim::DType type = maxim::DType::f32) {
  Operands o(*backend.device);
  const int64_t rows = static_cast<int64_t>(x.size()) / columns;
  const maxim::Tensor in = o.put(x, rows, columns, type), d_out = o.put(d_y, rows, columns);
  const maxim::Tensor norm = o.output(rows);
  const maxim::Tensor y = in_place ? in : o.output(rows, columns, type);
  const maxim::Tensor d_x = in_place ? d_out : o.output(rows, columns, type);
  backend.ops->normalize_forward(y, norm, in);
  backend.ops->normalize_backward(d_x, d_out, y, norm);
  return {o.get(y), o.get(norm), o.get(d_x)};
}

// Each element of a unit vector is a square root and a product away from the truth, and the sum of
// D squares, which are all positive, has a relative error below log2(D) roundings.
constexpr double kBound = 1e-6;

}  // namespace

TEST_CASE("normalize: on paper") {
  // x = (3, 4): norm 5, y = (0.6, 0.8). d_y = (1, 0): y . d_y = 0.6, d_x = (0.64, -0.48) / 5.
  for (Backend& backend : backends()) {
    const Results r = run(backend, {3, 4}, {1, 0}, 2);
    CHECK(r.norm == std::vector<float>{5});
    require_close("y", r.y, {0.6, 0.8}, 1e-7);
    require_close("d_x", r.d_x, {0.128, -0.096}, 1e-7);
  }
}

TEST_CASE("normalize: widths around the vectors, in place, any number of threads") {
  for (Backend& backend : backends())
    for (const int64_t columns : {1, 2, 15, 16, 17, 48, 128, 129})
      for (const int64_t rows : {0, 1, 2, 33}) {
        const auto x = random_floats(rows * columns, 1, 2), d_y = random_floats(rows * columns, 2);
        backend.set_threads(1);
        const Results r = run(backend, x, d_y, columns);
        const std::string what = fmt::format("{} [{}, {}]", backend.name, rows, columns);
        const Normalized want = normalize(to_double(x), columns);
        require_close(what + ": norm", r.norm, want.norm, 0, kBound);
        require_close(what + ": y", r.y, want.y, kBound, 0, columns);
        // d_x is a difference of numbers near |d_y| / |x|: with one column it is all rounding.
        double largest = 0;
        for (const double norm : want.norm) largest = std::max(largest, 1 / norm);
        if (columns > 1)
          require_close(what + ": d_x", r.d_x,
                        normalize_gradient(to_double(d_y), to_double(x), columns), kBound * largest,
                        0, columns);
        backend.set_threads(2);
        const Results over = run(backend, x, d_y, columns, true);
        require_same_bits(what + ": y over x", over.y, r.y);
        require_same_bits(what + ": d_x over d_y", over.d_x, r.d_x);
      }
}

TEST_CASE("normalize: 16-bit vectors, rows of a warp and rows of a block") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int64_t columns : {8, 13, 128, 512, 513, 1024, 1032, 2056}) {
        const double unit = type == maxim::DType::f32 ? 0 : roundoff(type);
        const auto x = rounded(type, random_floats(9 * columns, 1, 2));
        const auto d_y = random_floats(9 * columns, 2);
        const Results r = run(backend, x, d_y, columns, false, type);
        const std::string what =
            fmt::format("{} [9, {}] {}", backend.name, columns, maxim::name_of(type));
        const Normalized want = normalize(to_double(x), columns);
        require_close(what + ": norm", r.norm, want.norm, 0, kBound);
        require_close(what + ": y", r.y, want.y, kBound, unit, columns);
        // From the stored y and norm, by the formula.
        std::vector<double> d_x;
        for (int64_t t = 0; t < 9; ++t) {
          double along = 0;
          for (int64_t j = 0; j < columns; ++j)
            along += static_cast<double>(r.y[t * columns + j]) * d_y[t * columns + j];
          for (int64_t j = t * columns; j < (t + 1) * columns; ++j)
            d_x.push_back((d_y[j] - r.y[j] * along) / r.norm[t]);
        }
        require_close(what + ": d_x", r.d_x, d_x, kBound, unit, columns);
      }
}

TEST_CASE("normalize: rows shorter than 1e-12 are divided by 1e-12") {
  for (Backend& backend : backends()) {
    const std::vector<float> x = {0, 0, 3e-13f, -4e-13f, 3e-6f, 4e-6f}, d_y = {1, -2, 1, -2, 1, 0};
    const Results r = run(backend, x, d_y, 2);
    require_close("norm", r.norm, {1e-12, 1e-12, 5e-6}, 0, 1e-6);
    require_close("y", r.y, {0, 0, 0.3, -0.4, 0.6, 0.8}, 1e-6);
    require_close("d_x", r.d_x, {1e12, -2e12, 1e12, -2e12, 0.64 / 5e-6, -0.48 / 5e-6}, 0, 1e-6);
  }
}

TEST_CASE("normalize: the gradient is the central difference of the forward formula") {
  const auto x = random_floats(4 * 19, 3), d_y = random_floats(4 * 19, 4);
  const auto want = central_differences(
      [&](const std::vector<double>& v) {
        return weighted_sum(to_double(d_y), normalize(v, 19).y);
      },
      to_double(x));
  for (Backend& backend : backends())
    require_close(backend.name, run(backend, x, d_y, 19).d_x, want, kBound);
}

TEST_CASE("normalize: NaN stays in its row") {
  for (Backend& backend : backends()) {
    const Results r = run(backend, {1, std::nanf(""), 3, 4}, {1, 1, 1, 0}, 2);
    CHECK(std::isnan(r.norm[0]));
    CHECK(std::isnan(r.y[0]));
    CHECK(r.norm[1] == 5);
    CHECK(!std::isnan(r.d_x[2]));
  }
}

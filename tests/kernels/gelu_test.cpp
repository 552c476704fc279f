#include <cmath>
#include <limits>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/central_difference.h"
#include "tests/reference/compare.h"

using namespace maxim_tests;

namespace {

double gelu(double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_slope(double x) {
  return std::erfc(-x / std::sqrt(2.0)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}

std::vector<float> forward(Backend& backend, const std::vector<float>& h, int64_t columns,
                           bool in_place = false, maxim::DType type = maxim::DType::f32) {
  Operands o(*backend.device);
  const int64_t rows = static_cast<int64_t>(h.size()) / columns;
  const maxim::Tensor in = o.put(h, rows, columns, type);
  const maxim::Tensor out = in_place ? in : o.output(rows, columns, type);
  backend.ops->gelu_forward(out, in);
  return o.get(out);
}

struct Gradients {
  std::vector<float> y, d_h, d_bias;
};

constexpr float kBefore = 0.25f;

Gradients backward(Backend& backend, const std::vector<float>& h, const std::vector<float>& d_y,
                   int64_t columns, bool in_place = false, maxim::DType type = maxim::DType::f32) {
  Operands o(*backend.device);
  const int64_t rows = static_cast<int64_t>(h.size()) / columns;
  const maxim::Tensor in = o.put(h, rows, columns, type);
  const maxim::Tensor d_out = o.put(d_y, rows, columns, type);
  const maxim::Tensor y = in_place ? in : o.output(rows, columns, type);
  const maxim::Tensor d_in = in_place ? d_out : o.output(rows, columns, type);
  const maxim::Tensor d_bias = o.put(std::vector<float>(columns, kBefore));
  backend.ops->gelu_backward(y, d_in, d_bias, d_out, in);
  return {o.get(y), o.get(d_in), o.get(d_bias)};
}

std::vector<double> each(double (*f)(double), const std::vector<float>& x) {
  std::vector<double> y;
  for (const float v : x) y.push_back(f(v));
  return y;
}

// Phi is within 3e-7 of the truth (vector_math.h); times x, and the rounding of the product.
constexpr double kBound = 3e-7;

void require_right(Backend& backend, int64_t rows, int64_t columns,
                   maxim::DType type = maxim::DType::f32) {
  const std::string what =
      fmt::format("{} [{}, {}] {}", backend.name, rows, columns, maxim::name_of(type));
  const double unit = kBound + (type == maxim::DType::f32 ? 0 : roundoff(type));
  const auto h = rounded(type, random_floats(rows * columns, 1, 6));
  const auto d_y = rounded(type, random_floats(rows * columns, 2));
  require_close(what + ": y", forward(backend, h, columns, false, type), each(gelu, h), kBound,
                unit, columns);
  const Gradients g = backward(backend, h, d_y, columns, false, type);
  const auto d_h = product(to_double(d_y), each(gelu_slope, h));
  require_close(what + ": y again", g.y, each(gelu, h), kBound, unit, columns);
  require_close(what + ": d_h", g.d_h, d_h, 2 * kBound, unit, columns);
  require_close(what + ": d_bias", g.d_bias,
                sum(std::vector<double>(columns, kBefore), column_sums(d_h, columns)),
                2 * kBound * (1 + std::sqrt(static_cast<double>(rows))), 1e-6);
}

}  // namespace

TEST_CASE("gelu: the erf form within 3e-7 from the left tail to the right") {
  // Known to nine digits: gelu(1) = Phi(1) = 0.841344746, gelu(-1) = -0.158655254.
  std::vector<float> x = {0.0f, 1.0f, -1.0f, 1e-30f, -1e-30f, 30.0f, -30.0f, 3e38f, -3e38f};
  for (float v = -12; v < 12; v += 1.0f / 1024) x.push_back(v);
  for (Backend& backend : backends()) {
    const auto y = forward(backend, x, static_cast<int64_t>(x.size()));
    CHECK(std::abs(y[1] - 0.841344746) < 1e-7);
    CHECK(std::abs(y[2] + 0.158655254) < 1e-7);
    CHECK(y[5] == 30.0f);
    CHECK(y[7] == 3e38f);
    require_close(backend.name, y, each(gelu, x), kBound, kBound);
    const auto slope =
        backward(backend, x, std::vector<float>(x.size(), 1.0f), static_cast<int64_t>(x.size()));
    require_close(backend.name, slope.d_h, each(gelu_slope, x), 2 * kBound, kBound);
  }
}

TEST_CASE("gelu: NaN and infinity") {
  const float inf = std::numeric_limits<float>::infinity();
  for (Backend& backend : backends()) {
    const auto y = forward(backend, {std::nanf(""), inf, 1.0f}, 3);
    CHECK(std::isnan(y[0]));
    CHECK(y[1] == inf);
    CHECK(std::abs(y[2] - 0.841344746) < 1e-7);
  }
}

TEST_CASE("gelu: sizes around the vectors and the row blocks") {
  for (Backend& backend : backends()) {
    for (const int64_t columns : {1, 15, 16, 17, 33, 1536}) require_right(backend, 3, columns);
    for (const int64_t rows : {1, 31, 32, 33, 100, 2100}) require_right(backend, rows, 20);
    for (const maxim::DType type : backend.types) {
      for (const int64_t columns : {8, 127, 128, 132, 256, 264})
        require_right(backend, 9, columns, type);
      if (type == maxim::DType::f32) require_right(backend, 8193, 2);  // blocks of 33 rows on a GPU
    }
    CHECK(forward(backend, {}, 16).empty());
    CHECK(backward(backend, {}, {}, 16).d_bias == std::vector<float>(16, kBefore));
  }
}

TEST_CASE("gelu: the gradient is the central difference of gelu") {
  const auto h = random_floats(50, 7, 4), d_y = random_floats(50, 8);
  const auto w = to_double(d_y);
  const auto want = central_differences(
      [&](const std::vector<double>& x) {
        double loss = 0;
        for (size_t i = 0; i < x.size(); ++i) loss += w[i] * gelu(x[i]);
        return loss;
      },
      to_double(h));
  for (Backend& backend : backends())
    require_close(backend.name, backward(backend, h, d_y, 10).d_h, want, 2 * kBound, kBound);
}

TEST_CASE("gelu: in place") {
  const auto h = random_floats(37 * 21, 1, 6), d_y = random_floats(37 * 21, 2);
  for (Backend& backend : backends()) {
    require_same_bits("y over h", forward(backend, h, 21, true), forward(backend, h, 21));
    const Gradients apart = backward(backend, h, d_y, 21),
                    over = backward(backend, h, d_y, 21, true);
    require_same_bits("y of the backward pass over h", over.y, apart.y);
    require_same_bits("d_h over d_y", over.d_h, apart.d_h);
    require_same_bits("d_bias", over.d_bias, apart.d_bias);
  }
}

TEST_CASE("gelu: bits do not depend on the threads") {
  const auto h = random_floats(333 * 50, 1, 6), d_y = random_floats(333 * 50, 2);
  for (Backend& backend : backends()) {
    backend.set_threads(1);
    const auto y = forward(backend, h, 50);
    const Gradients one = backward(backend, h, d_y, 50);
    for (const int threads : {2, 3}) {
      backend.set_threads(threads);
      require_same_bits("y", forward(backend, h, 50), y);
      const Gradients g = backward(backend, h, d_y, 50);
      require_same_bits("d_h", g.d_h, one.d_h);
      require_same_bits("d_bias", g.d_bias, one.d_bias);
    }
    backend.set_threads(2);
  }
}

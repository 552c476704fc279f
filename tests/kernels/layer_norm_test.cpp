#include "tests/reference/layer_norm.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/central_difference.h"
#include "tests/reference/compare.h"
#include "tests/reference/dropout.h"

using namespace maxim_tests;

namespace {

constexpr float kEpsilon = 1e-6f;

// Operands of both passes on the host, and the results of one backend.
struct Case {
  Ragged rows;
  int64_t h;
  maxim::Dropout dropout;
  maxim::DType type;  // of activations
  std::vector<float> x, residual, gamma, beta, d_y;

  Case(const std::vector<int32_t>& lengths, int64_t columns, float probability = 0,
       maxim::DType type_ = maxim::DType::f32)
      : rows(ragged(lengths)),
        h(columns),
        dropout{probability, 0x123456789ABCDEFull, 17, 5},
        type(type_) {
    const int64_t size = rows.tokens() * h;
    x = rounded(type, random_floats(size, 1));
    residual = rounded(type, random_floats(size, 2));
    gamma = random_floats(h, 3);
    beta = random_floats(h, 4);
    d_y = rounded(type, random_floats(size, 5));
  }
  std::vector<double> multipliers() const { return dropout_multipliers(dropout, rows, h); }
  std::vector<double> sum_of_inputs() const {
    return sum(to_double(residual), product(to_double(x), multipliers()));
  }
};

struct Results {
  std::vector<float> y, s, mean, rstd, applied, y_again;
  std::vector<float> d_s, d_x, d_gamma, d_beta, d_bias;
};

constexpr float kBefore = 0.25f;  // what the sums are added to

Results run(Backend& backend, const Case& c) {
  Operands o(*backend.device);
  const maxim::Sequences sequences = o.put(c.rows);
  const int64_t t = c.rows.tokens(), h = c.h;
  const maxim::Tensor gamma = o.put(c.gamma), beta = o.put(c.beta);
  const maxim::LayerNormForward f{.y = o.output(t, h, c.type),
                                  .s = o.output(t, h, c.type),
                                  .mean = o.output(t),
                                  .rstd = o.output(t),
                                  .x = o.put(c.x, t, h, c.type),
                                  .residual = o.put(c.residual, t, h, c.type),
                                  .gamma = gamma,
                                  .beta = beta,
                                  .epsilon = kEpsilon,
                                  .dropout = c.dropout};
  backend.ops->layer_norm_forward(f, sequences);
  const maxim::Tensor applied = o.output(t, h, c.type);
  backend.ops->layer_norm_apply(applied, f.s, f.mean, f.rstd, gamma, beta);
  const auto before = [&] { return o.put(std::vector<float>(h, kBefore)); };
  const maxim::LayerNormBackward b{.d_s = o.output(t, h, c.type),
                                   .d_x = o.output(t, h, c.type),
                                   .d_gamma = before(),
                                   .d_beta = before(),
                                   .d_bias = before(),
                                   .d_y = o.put(c.d_y, t, h, c.type),
                                   .s = f.s,
                                   .mean = f.mean,
                                   .rstd = f.rstd,
                                   .gamma = gamma,
                                   .y = o.output(t, h, c.type),
                                   .beta = beta,
                                   .dropout = c.dropout};
  backend.ops->layer_norm_backward(b, sequences);
  return {o.get(f.y),   o.get(f.s),   o.get(f.mean),    o.get(f.rstd),   o.get(applied), o.get(b.y),
          o.get(b.d_s), o.get(b.d_x), o.get(b.d_gamma), o.get(b.d_beta), o.get(b.d_bias)};
}

// d_gamma, d_beta, d_bias on top of kBefore.
std::vector<double> on_top(std::vector<double> sums) {
  for (double& v : sums) v += kBefore;
  return sums;
}

// |x|, |residual|, |gamma|, |beta|, |d_y| <= 1 and rstd stays below 4 here: every element passes
// through some ten roundings of values below 8, 2^-24 * 8 each, in the middle of their range.
constexpr double kBound = 4e-6;

// `unit`: the rounding of each result to its type. What follows from the stored s is held against
// the formula of the stored s.
void require_right(Backend& backend, const Case& c) {
  const std::string what =
      fmt::format("{}, {} rows of {}, dropout {}, {}", backend.name, c.rows.tokens(), c.h,
                  c.dropout.probability, maxim::name_of(c.type));
  const double unit = c.type == maxim::DType::f32 ? 0 : roundoff(c.type);
  const Results r = run(backend, c);
  const auto multipliers = c.multipliers();
  require_close(what + ": s", r.s, c.sum_of_inputs(), 2e-7, 1e-7 + unit, c.h);
  const auto s = unit == 0 ? c.sum_of_inputs() : to_double(r.s);
  const LayerNorm want = layer_norm(s, to_double(c.gamma), to_double(c.beta), kEpsilon);
  const LayerNormGradients g =
      layer_norm_gradients(to_double(c.d_y), s, to_double(c.gamma), kEpsilon);
  const auto d_x = product(g.d_s, multipliers);
  require_close(what + ": mean", r.mean, want.mean, 1e-6);
  require_close(what + ": rstd", r.rstd, want.rstd, 0, 2e-6);
  require_close(what + ": y", r.y, want.y, kBound, unit, c.h);
  require_same_bits(what + ": apply", r.applied, r.y);
  require_same_bits(what + ": y again", r.y_again, r.y);
  require_close(what + ": d_s", r.d_s, g.d_s, kBound, unit, c.h);
  require_close(what + ": d_x", r.d_x, d_x, kBound, unit, c.h);
  // A sum over T rows: the terms' own errors and T roundings of the partial sums.
  const double sum_bound = kBound * (1 + std::sqrt(static_cast<double>(c.rows.tokens())));
  require_close(what + ": d_gamma", r.d_gamma, on_top(g.d_gamma), sum_bound, 1e-6);
  require_close(what + ": d_beta", r.d_beta, on_top(g.d_beta), sum_bound, 1e-6);
  require_close(what + ": d_bias", r.d_bias, on_top(column_sums(d_x, c.h)), sum_bound, 1e-6);
}

}  // namespace

TEST_CASE("layer_norm: a row that can be checked on paper") {
  // s = (1, 3): mean 2, variance 1. With epsilon 3, rstd = 1/2 and y = gamma (-1/2, 1/2) + beta.
  for (Backend& backend : backends()) {
    Operands o(*backend.device);
    const maxim::LayerNormForward f{.y = o.output(1, 2),
                                    .s = o.output(1, 2),
                                    .mean = o.output(1),
                                    .rstd = o.output(1),
                                    .x = o.put<float>({0, 1}, 1, 2),
                                    .residual = o.put<float>({1, 2}, 1, 2),
                                    .gamma = o.put<float>({2, 4}),
                                    .beta = o.put<float>({10, 20}),
                                    .epsilon = 3};
    backend.ops->layer_norm_forward(f, o.put(ragged({1})));
    CHECK(o.get(f.s) == std::vector<float>{1, 3});
    CHECK(o.get(f.mean) == std::vector<float>{2});
    CHECK(o.get(f.rstd) == std::vector<float>{0.5});
    CHECK(o.get(f.y) == std::vector<float>{9, 22});
  }
}

TEST_CASE("layer_norm: widths around the vectors, rows around the blocks, ragged sequences") {
  for (Backend& backend : backends())
    for (const float probability : {0.0f, 0.1f}) {
      for (const int64_t h : {3, 15, 16, 17, 31, 63, 64, 65, 384})
        require_right(backend, Case({3, 1, 0, 7}, h, probability));
      for (const int32_t rows : {1, 31, 32, 33, 64, 100})
        require_right(backend, Case({rows}, 48, probability));
      require_right(backend, Case({1, 1, 2000, 1, 100}, 32, probability));  // blocks of 33 rows
    }
}

TEST_CASE("layer_norm: rows of a warp and rows of a block, blocks of rows, 16-bit activations") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      // A GPU's warp keeps 1,024 columns in registers, 512 where they do not come in packs.
      for (const int64_t h : {8, 13, 264, 512, 513, 1024, 1032, 2056})
        require_right(backend, Case({3, 1, 0, 2}, h, 0.1f, type));
      require_right(backend, Case({33}, 48, 0, type));
      for (const int32_t rows : {7, 8, 9, 15, 16, 17})
        require_right(backend, Case({rows}, 8, 0.1f, type));
      // More than 528 blocks of 16 rows: longer blocks.
      if (type == maxim::DType::f32) require_right(backend, Case({8449}, 4, 0, type));
    }
}

TEST_CASE("layer_norm: no rows") {
  for (Backend& backend : backends()) {
    const Results r = run(backend, Case({}, 32, 0.1f));
    CHECK(r.y.empty());
    CHECK(r.d_gamma == std::vector<float>(32, kBefore));
  }
}

TEST_CASE("layer_norm: dropout keeps exactly the elements of the scalar definition") {
  for (Backend& backend : backends())
    for (const float probability : {1e-5f, 0.1f, 0.5f, 0.999f}) {
      Case c({5, 0, 1, 30, 2}, 200, probability);
      const std::vector<float> multipliers = to_float(c.multipliers());
      for (size_t i = 0; i < c.x.size(); ++i)
        c.x[i] = multipliers[i] == 0 ? HUGE_VALF : 1.0f;  // a dropped infinity is gone
      std::fill(c.residual.begin(), c.residual.end(), 0.0f);
      const Results r = run(backend, c);
      require_same_bits(fmt::format("{}, p {}", backend.name, probability), r.s, multipliers);
      for (size_t i = 0; i < r.d_x.size(); ++i)
        if ((r.d_x[i] != 0) != (r.s[i] != 0) && r.d_s[i] != 0) FAIL("masks differ at " << i);
    }
}

TEST_CASE("layer_norm: a row far from zero keeps its variance, a constant row is beta") {
  for (Backend& backend : backends()) {
    Case c({2}, 384);
    std::fill(c.residual.begin(), c.residual.end(), 0.0f);
    for (int64_t j = 0; j < c.h; ++j) {
      c.x[j] = 4096.0f + static_cast<float>(j % 8);  // whole numbers: s, mean and squares are exact
      c.x[c.h + j] = 3.0f;
    }
    const Results r = run(backend, c);
    const LayerNorm want =
        layer_norm(to_double(c.x), to_double(c.gamma), to_double(c.beta), kEpsilon);
    require_close(backend.name, r.y, want.y, kBound, 0, c.h);
    require_same_bits(backend.name, {r.y.begin() + c.h, r.y.end()}, c.beta);
  }
}

TEST_CASE("layer_norm: gradients are the central differences of the forward formula") {
  const Case c({2, 3}, 17, 0.3f);
  const auto multipliers = c.multipliers();
  const auto x = to_double(c.x), residual = to_double(c.residual), gamma = to_double(c.gamma);
  const auto beta = to_double(c.beta), d_y = to_double(c.d_y);
  const auto loss = [&](const auto& x_, const auto& residual_, const auto& gamma_,
                        const auto& beta_) {
    const auto s = sum(residual_, product(x_, multipliers));
    return weighted_sum(d_y, layer_norm(s, gamma_, beta_, kEpsilon).y);
  };
  using Values = const std::vector<double>&;
  const auto want_x =
      central_differences([&](Values v) { return loss(v, residual, gamma, beta); }, x);
  for (Backend& backend : backends()) {
    const Results r = run(backend, c);
    require_close("d_x", r.d_x, want_x, kBound);
    require_close("d_bias", r.d_bias, on_top(column_sums(want_x, c.h)), 4 * kBound);
    require_close("d_s", r.d_s,
                  central_differences([&](Values v) { return loss(x, v, gamma, beta); }, residual),
                  kBound);
    require_close(
        "d_gamma", r.d_gamma,
        on_top(central_differences([&](Values v) { return loss(x, residual, v, beta); }, gamma)),
        4 * kBound);
    require_close(
        "d_beta", r.d_beta,
        on_top(central_differences([&](Values v) { return loss(x, residual, gamma, v); }, beta)),
        4 * kBound);
  }
}

TEST_CASE("layer_norm: d_s over d_y, d_x and d_bias left out") {
  for (Backend& backend : backends())
    for (const float probability : {0.0f, 0.2f}) {
      const Case c({40, 3}, 65, probability);
      const Results want = run(backend, c);
      Operands o(*backend.device);
      const int64_t t = c.rows.tokens();
      const maxim::Tensor d_y = o.put(c.d_y, t, c.h);
      const auto before = [&] { return o.put(std::vector<float>(c.h, kBefore)); };
      const maxim::LayerNormBackward b{.d_s = d_y,
                                       .d_gamma = before(),
                                       .d_beta = before(),
                                       .d_y = d_y,
                                       .s = o.put(want.s, t, c.h),
                                       .mean = o.put(want.mean),
                                       .rstd = o.put(want.rstd),
                                       .gamma = o.put(c.gamma),
                                       .dropout = c.dropout};
      backend.ops->layer_norm_backward(b, o.put(c.rows));
      require_same_bits("d_s", o.get(b.d_s), want.d_s);
      require_same_bits("d_gamma", o.get(b.d_gamma), want.d_gamma);
      require_same_bits("d_beta", o.get(b.d_beta), want.d_beta);
    }
}

TEST_CASE("layer_norm: bits do not depend on the threads") {
  for (Backend& backend : backends()) {
    const Case c({500, 1, 77}, 96, 0.1f);
    backend.set_threads(1);
    const Results one = run(backend, c);
    for (const int threads : {2, 3}) {
      backend.set_threads(threads);
      const Results r = run(backend, c);
      for (const auto member :
           {&Results::y, &Results::s, &Results::mean, &Results::rstd, &Results::d_s, &Results::d_x,
            &Results::d_gamma, &Results::d_beta, &Results::d_bias})
        require_same_bits(fmt::format("{}, {} threads", backend.name, threads), r.*member,
                          one.*member);
    }
    backend.set_threads(2);
  }
}

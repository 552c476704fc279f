#include "tests/reference/cross_entropy.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/arithmetic.h"
#include "tests/reference/central_difference.h"
#include "tests/reference/compare.h"
#include "tests/reference/message_of.h"
#include "tests/reference/random.h"

using namespace maxim_tests;

namespace {

struct Case {
  std::vector<float> scores;
  std::vector<int32_t> targets;
  float temperature = 1, scale = 1;

  Case(int64_t rows, int64_t columns, float largest = 20)
      : scores(random_floats(rows * columns, 1, largest)),
        targets(random_integers(rows, static_cast<int32_t>(columns), 2)) {}
};

struct Results {
  float loss;
  std::vector<float> d_scores;
};

constexpr float kBefore = 0.25f;  // what the loss is added to

Results run(Backend& backend, const Case& c, bool in_place = false) {
  Operands o(*backend.device);
  const auto rows = static_cast<int64_t>(c.targets.size());
  const int64_t columns = rows == 0 ? 5 : static_cast<int64_t>(c.scores.size()) / rows;
  const maxim::Tensor scores = o.put(c.scores, rows, columns);
  const maxim::CrossEntropy args{.loss = o.put<float>({kBefore}),
                                 .d_scores = in_place ? scores : o.output(rows, columns),
                                 .scores = scores,
                                 .targets = o.put(c.targets),
                                 .temperature = c.temperature,
                                 .scale = c.scale};
  backend.ops->cross_entropy(args);
  return {o.get(args.loss)[0], o.get(args.d_scores)};
}

void require_right(Backend& backend, const Case& c) {
  const std::string what = fmt::format("{}, {} scores in {} rows, temperature {}", backend.name,
                                       c.scores.size(), c.targets.size(), c.temperature);
  const CrossEntropy want = cross_entropy(to_double(c.scores), c.targets, c.temperature, c.scale);
  const Results r = run(backend, c), in_place = run(backend, c, true);
  // One rounding of the sum, and those of exp (2e-7) within it.
  require_close(what + ": loss", {r.loss}, {kBefore + want.loss}, 1e-7, 5e-7);
  // A logit z carries 2^-24 |z|, and below -20 its softmax is below 1e-8.
  const double unit = c.scale / c.temperature;
  require_close(what + ": d_scores", r.d_scores, want.d_scores, 2e-6 * unit);
  require_same_bits(what + ": over the scores", in_place.d_scores, r.d_scores);
  CHECK(in_place.loss == r.loss);
}

}  // namespace

TEST_CASE("cross_entropy: two rows that can be checked on paper") {
  // Logits (log 3, 0) and (0, 0): probabilities (3/4, 1/4) and (1/2, 1/2).
  Case c(2, 2);
  c.temperature = 2;
  c.scale = 0.5f;
  c.scores = {2 * std::log(3.0f), 0, 7, 7};
  c.targets = {1, 0};
  for (Backend& backend : backends()) {
    const Results r = run(backend, c);
    CHECK(r.loss == Approx(kBefore + 0.5 * (std::log(4.0) + std::log(2.0))));
    require_close("d_scores", r.d_scores, {0.1875, -0.1875, -0.125, 0.125}, 1e-7);
  }
}

TEST_CASE("cross_entropy: sizes around the vectors") {
  for (Backend& backend : backends()) {
    for (const int64_t columns :
         {2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257, 1000, 1028})
      for (const int64_t rows : {1, 3, 32}) {
        Case c(rows, columns);
        c.temperature = 0.7f;
        c.scale = 1.0f / static_cast<float>(rows);
        require_right(backend, c);
      }
    for (const int64_t rows : {256, 257, 700}) require_right(backend, Case(rows, 9));
    const Results one = run(backend, Case(4, 1));  // a lone document is always right
    CHECK(one.loss == kBefore);
    CHECK(one.d_scores == std::vector<float>(4, 0.0f));
    CHECK(run(backend, Case(0, 5)).loss == kBefore);
  }
}

TEST_CASE("cross_entropy: scores of 32 at temperature 0.01 stay finite and exact") {
  for (Backend& backend : backends()) {
    Case c(8, 40, 32);  // logits up to 3,200
    c.temperature = 0.01f;
    c.scale = 0.125f;
    require_right(backend, c);
    // The target nearly certain: losses of 2 e^-10 and 2 e^-20 that log-sum-exp minus logit, or a
    // sum in float, would round away.
    for (const float other : {31.9f, 31.8f}) {
      Case sure(1, 3);
      sure.scores = {32, other, other};
      sure.targets = {0};
      sure.temperature = 0.01f;
      const double gap = (static_cast<double>(other) - 32) / 0.01f;
      const double want = std::log1p(2 * std::exp(gap));
      sure.scale = static_cast<float>(100 / want);
      CHECK(run(backend, sure).loss == Approx(kBefore + sure.scale * want).epsilon(2e-6));
    }
  }
}

TEST_CASE("cross_entropy: a loss scale multiplies the gradient, not the loss") {
  for (Backend& backend : backends()) {
    const Case c(3, 40);
    const Results plain = run(backend, c);
    Operands o(*backend.device);
    const maxim::CrossEntropy args{.loss = o.put<float>({kBefore}),
                                   .d_scores = o.output(3, 40),
                                   .scores = o.put(c.scores, 3, 40),
                                   .targets = o.put(c.targets),
                                   .loss_scale = o.put<float>({512, 7})};
    backend.ops->cross_entropy(args);
    CHECK(o.get(args.loss)[0] == plain.loss);
    std::vector<float> d_scores = plain.d_scores;
    for (float& d : d_scores) d *= 512;  // exact
    require_same_bits("d_scores", o.get(args.d_scores), d_scores);
  }
}

TEST_CASE("cross_entropy: the gradient is the central difference of the loss") {
  Case c(3, 18, 3);
  c.temperature = 0.5f;
  c.scale = 0.25f;
  const auto want = central_differences(
      [&](const std::vector<double>& scores) {
        return cross_entropy(scores, c.targets, c.temperature, c.scale).loss;
      },
      to_double(c.scores));
  for (Backend& backend : backends())
    require_close(backend.name, run(backend, c).d_scores, want, 1e-6);
}

TEST_CASE("cross_entropy: a score that is not a number makes the loss one") {
  for (Backend& backend : backends())
    for (const int64_t place : {0, 20, 39}) {
      Case c(3, 40);
      c.scores[40 + place] = std::numeric_limits<float>::quiet_NaN();
      const Results r = run(backend, c);
      CHECK(std::isnan(r.loss));
      CHECK(std::isnan(r.d_scores[40]));
      CHECK(!std::isnan(r.d_scores[0]));
      CHECK(!std::isnan(r.d_scores[80]));
    }
}

TEST_CASE("cross_entropy: the same bits on any number of threads") {
  for (Backend& backend : backends()) {
    const Case c(101, 77);
    backend.set_threads(1);
    const Results one = run(backend, c);
    for (const int threads : {2, 3, 5}) {
      backend.set_threads(threads);
      const Results r = run(backend, c);
      require_same_bits("d_scores", r.d_scores, one.d_scores);
      require_same_bits("loss", {r.loss}, {one.loss});
    }
    backend.set_threads(2);
  }
}

TEST_CASE("cross_entropy: targets that cannot be are refused or NaN, temperatures are refused") {
  for (Backend& backend : backends()) {
    Case c(2, 4);
    for (const int32_t target : {4, -1}) {
      c.targets = {3, target};
      if (backend.checks_indices) {
        require_message<maxim::Error>([&] { run(backend, c); },
                                      {fmt::format("target {} of row 1 in 4 columns", target)});
        continue;
      }
      const Results r = run(backend, c);
      CHECK(std::isnan(r.loss));
      for (int i = 0; i < 8; ++i) CHECK(std::isnan(r.d_scores[i]) == (i >= 4));
    }
    c.targets = {3, 0};
    c.temperature = 0;
    require_message<maxim::Error>([&] { run(backend, c); }, {"temperature 0"});
  }
}

#include "tests/reference/adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/arithmetic.h"
#include "tests/reference/compare.h"
#include "tests/reference/message_of.h"
#include "tests/reference/random.h"

using namespace maxim_tests;
using Groups = std::vector<maxim::AdamWGroup>;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Parameters and optimizer state on a device.
class Optimizer {
 public:
  Optimizer(Backend& backend, const std::vector<float>& parameters, Groups groups)
      : backend_(backend), o_(*backend.device), groups_(std::move(groups)) {
    const auto size = static_cast<int64_t>(parameters.size());
    args.parameters = o_.put(parameters);
    args.m = o_.zeros(size);
    args.v = o_.zeros(size);
    args.square_sums = o_.output(1);
    args.gradient_square_sum = o_.output(1);
    args.counters = o_.put(std::vector<int64_t>(2));
    args.groups = groups_.data();
    args.group_count = static_cast<int64_t>(groups_.size());
  }
  void step(const std::vector<float>& gradients) {
    args.gradients = o_.put(gradients);
    backend_.ops->square_sum(args.square_sums, args.gradients);
    backend_.ops->adamw(args);
  }
  std::vector<float> parameters() { return o_.get(args.parameters); }
  std::vector<float> m() { return o_.get(args.m); }
  std::vector<float> v() { return o_.get(args.v); }
  std::vector<int64_t> counters() { return o_.get<int64_t>(args.counters); }

  maxim::AdamW args;

 private:
  Backend& backend_;
  Operands o_;
  Groups groups_;
};

float square_sum(Backend& backend, const std::vector<float>& x) {
  Operands o(*backend.device);
  const maxim::Tensor out = o.output(1);
  backend.ops->square_sum(out, o.put(x));
  return o.get(out)[0];
}

std::vector<double> spread(const Groups& groups, int64_t size, float maxim::AdamWGroup::*rate) {
  std::vector<double> values(size);
  for (const auto& group : groups)
    std::fill(values.begin() + group.begin, values.begin() + group.end, group.*rate);
  return values;
}

}  // namespace

TEST_CASE("adamw: one step that can be checked on paper") {
  // The norm is 5 and the limit 2.5, so gradients are halved (but for 1e-6 in the norm): 1.5, -2.
  // After one step m / (1 - b1) = g and sqrt(v / (1 - b2)) = |g|: p (1 - 0.1 * 0.5) -+ 0.1.
  for (Backend& backend : backends()) {
    Optimizer a(backend, {10, 20, 30}, {{0, 2, 0.1f, 0.5f}});
    a.args.max_grad_norm = 2.5f;
    a.step({3, -4, 0});
    require_close("p", a.parameters(), {9.4, 19.1, 30}, 0, 3e-7);
    require_close("m", a.m(), {0.15, -0.2, 0}, 0, 1e-6);
    require_close("v", a.v(), {0.001 * 2.25, 0.001 * 4, 0}, 0, 2e-5);  // 1 - 0.999f is 1.3e-5 off
    CHECK(a.counters() == std::vector<int64_t>{1, 0});
  }
}

TEST_CASE("adamw: five steps as torch's formula, sizes around the vectors and blocks") {
  for (Backend& backend : backends())
    for (const int64_t size : {1, 15, 16, 17, 127, 128, 129, 16384, 16385, 40000}) {
      const auto n = static_cast<float>(size);
      Groups groups = {{0, size / 3, 1e-2f, 0.1f}, {size / 3, size / 2, 3e-3f, 0}};
      if (size > 16) groups.push_back({size / 2 + 1, size - 1, 1e-2f, 0});
      const auto rate = spread(groups, size, &maxim::AdamWGroup::learning_rate);
      const auto decay = spread(groups, size, &maxim::AdamWGroup::weight_decay);
      const std::vector<float> start = random_floats(size, 1);
      Optimizer a(backend, start, groups);
      a.args.max_grad_norm = 0.4f * std::sqrt(n);  // the norm is near 0.58 sqrt(n) at first
      AdamWState want{to_double(start), std::vector<double>(size), std::vector<double>(size)};
      for (uint32_t t = 0; t < 5; ++t) {
        // Smaller ones later: some steps are clipped, others are not.
        const auto gradients = random_floats(size, 10 + t, t < 2 ? 1.0f : 0.1f);
        a.step(gradients);
        adamw_step(want, to_double(gradients), rate, decay,
                   {.max_grad_norm = a.args.max_grad_norm});
      }
      const std::string what = fmt::format("{}, {} parameters", backend.name, size);
      require_close(what + ": m", a.m(), want.m, 1e-7, 1e-6);
      require_close(what + ": v", a.v(), want.v, 1e-8, 2e-6);
      // Five steps of up to 1e-2, each with a few roundings, on values of up to 1.
      require_close(what + ": p", a.parameters(), want.p, 5e-7);
      CHECK(a.counters() == std::vector<int64_t>{5, 0});
    }
}

TEST_CASE("adamw: hundreds of groups of a few parameters, with gaps") {
  for (Backend& backend : backends()) {
    Groups groups;
    int64_t at = 3;
    for (int i = 0; i < 300; ++i) {
      const int64_t size = 1 + i % 13;
      groups.push_back({at, at + size, 1e-3f * static_cast<float>(1 + i % 5), 0.1f});
      at += size + i % 3;
    }
    const std::vector<float> start = random_floats(at + 5, 1), gradients = random_floats(at + 5, 2);
    const auto rate = spread(groups, at + 5, &maxim::AdamWGroup::learning_rate);
    const auto decay = spread(groups, at + 5, &maxim::AdamWGroup::weight_decay);
    Optimizer a(backend, start, groups);
    AdamWState want{to_double(start), std::vector<double>(at + 5), std::vector<double>(at + 5)};
    for (int t = 0; t < 2; ++t) {
      a.step(gradients);
      adamw_step(want, to_double(gradients), rate, decay, {.max_grad_norm = a.args.max_grad_norm});
    }
    const std::vector<float> p = a.parameters();
    require_close(backend.name, p, want.p, 5e-7);
    for (int64_t i = 0; i < at + 5; ++i)
      if ((rate[i] == 0) != (p[i] == start[i])) FAIL("parameter " << i);
  }
}

TEST_CASE("adamw: ten steps without gradients: decay scales matrices, all else keeps its bits") {
  for (Backend& backend : backends()) {
    const std::vector<float> start = random_floats(3000, 1);
    Optimizer a(backend, start, {{0, 1000, 1e-3f, 0.1f}, {1000, 2000, 1e-3f, 0}});
    for (int t = 0; t < 10; ++t) a.step(std::vector<float>(3000));
    const std::vector<float> p = a.parameters();
    std::vector<double> want = to_double(start);
    for (int i = 0; i < 1000; ++i) want[i] *= std::pow(1 - 1e-4, 10);
    require_close("decayed", {p.begin(), p.begin() + 1000}, {want.begin(), want.begin() + 1000}, 0,
                  1e-6);
    require_same_bits("the rest", {p.begin() + 1000, p.end()}, {start.begin() + 1000, start.end()});
  }
}

TEST_CASE("adamw: parameters without a gradient move on by their momentum, beside untouched ones") {
  for (Backend& backend : backends()) {
    const int64_t size = 128 * 5;
    const std::vector<float> start = random_floats(size, 1);
    const std::vector<double> rate(size, 1e-2), none(size);
    Optimizer a(backend, start, {{0, size, 1e-2f, 0}});
    AdamWState want{to_double(start), std::vector<double>(size), std::vector<double>(size)};
    std::vector<float> gradients(size);
    gradients[128 + 127] = 0.5f;  // one element of the second 128, one of the last
    gradients[128 * 4] = -0.25f;
    for (int t = 0; t < 3; ++t) {
      a.step(gradients);
      adamw_step(want, to_double(gradients), rate, none, {});
      std::fill(gradients.begin(), gradients.end(), 0.0f);
    }
    require_close("p", a.parameters(), want.p, 3e-7);
    for (const int64_t i : {255, 512}) CHECK(std::abs(a.parameters()[i] - start[i]) > 1.5e-2);
  }
}

TEST_CASE("adamw: a norm that is not finite changes nothing but the count of skipped steps") {
  for (Backend& backend : backends())
    for (const float bad : {kNan, kInfinity, -kInfinity, 3e38f}) {
      const std::vector<float> start = random_floats(100, 1);
      Optimizer a(backend, start, {{0, 100, 1e-2f, 0.1f}});
      std::vector<float> gradients = random_floats(100, 2);
      a.step(gradients);
      const auto p = a.parameters(), m = a.m(), v = a.v();
      gradients[57] = bad;
      a.step(gradients);
      require_same_bits("p", a.parameters(), p);
      require_same_bits("m", a.m(), m);
      require_same_bits("v", a.v(), v);
      CHECK(a.counters() == std::vector<int64_t>{1, 1});
    }
}

TEST_CASE(
    "adamw: a loss scale is taken out, halved after a bad norm, doubled after 2,000 good steps") {
  for (Backend& backend : backends()) {
    const std::vector<float> start = random_floats(100, 1);
    std::vector<float> gradients = random_floats(100, 2), scaled = gradients;
    for (float& g : scaled) g *= 1024;  // exact
    Optimizer plain(backend, start, {{0, 100, 1e-2f, 0.1f}}),
        a(backend, start, {{0, 100, 1e-2f, 0.1f}});
    Operands o(*backend.device);
    a.args.loss_scale = o.put<float>({1024, maxim::LossScale::kInterval - 2});
    plain.step(gradients);
    a.step(scaled);
    require_same_bits("p", a.parameters(), plain.parameters());
    require_same_bits("v", a.v(), plain.v());
    CHECK(o.get(a.args.gradient_square_sum) == o.get(plain.args.gradient_square_sum));
    CHECK(o.get(a.args.loss_scale) == std::vector<float>{1024, maxim::LossScale::kInterval - 1});
    a.step(scaled);
    CHECK(o.get(a.args.loss_scale) == std::vector<float>{2048, 0});
    a.step(scaled);
    CHECK(o.get(a.args.loss_scale) == std::vector<float>{2048, 1});
    const auto p = a.parameters();
    scaled[3] = kInfinity;
    a.step(scaled);
    require_same_bits("p of a skipped step", a.parameters(), p);
    CHECK(o.get(a.args.loss_scale) == std::vector<float>{1024, 0});
    CHECK(a.counters() == std::vector<int64_t>{3, 1});
  }
}

TEST_CASE("adamw: the 16-bit copy is the new parameters, rounded") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      const std::vector<float> start = random_floats(1003, 1);
      Optimizer a(backend, start, {{0, 7, 1e-2f, 0.1f}, {7, 900, 1e-2f, 0}, {901, 1003, 1e-2f, 0}});
      Operands o(*backend.device);
      if (type == maxim::DType::f32) {
        if (backend.types.size() > 1) continue;
        a.args.copy = o.put(std::vector<uint16_t>(1003));  // a backend without 16-bit types
        CHECK_THROWS_AS(a.step(random_floats(1003, 2)), maxim::Error);
        continue;
      }
      a.args.copy = o.output(1003, 1, type);
      a.step(random_floats(1003, 2));
      auto copy = o.get(a.args.copy), want = rounded(type, a.parameters());
      CHECK(std::isnan(copy[900]));  // in no group
      copy[900] = want[900] = 0;
      require_same_bits(maxim::name_of(type), copy, want);
    }
}

TEST_CASE("adamw: the same bits on any number of threads") {
  for (Backend& backend : backends()) {
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3, 5}) {
      backend.set_threads(threads);
      Optimizer a(backend, random_floats(50001, 1),
                  {{0, 7, 1e-2f, 0.1f}, {7, 40000, 1e-2f, 0}, {40001, 50001, 1e-3f, 0.1f}});
      for (uint32_t t = 0; t < 3; ++t) a.step(random_floats(50001, 10 + t));
      results.push_back(a.parameters());
      require_same_bits("p", results.back(), results.front());
    }
    backend.set_threads(2);
  }
}

TEST_CASE("adamw: a part of the parameters with moments of its own gives the same bits") {
  for (Backend& backend : backends()) {
    const std::vector<float> start = random_floats(1000, 1);
    Optimizer whole(backend, start, {{0, 100, 1e-2f, 0.1f}, {100, 1000, 1e-3f, 0}});
    Optimizer part(
        backend, start,
        {{60, 100, 1e-2f, 0.1f, -60}, {100, 163, 1e-3f, 0, -60}, {900, 997, 1e-3f, 0, -796}});
    Operands o(*backend.device);
    part.args.m = o.zeros(201);
    part.args.v = o.zeros(201);
    for (uint32_t t = 0; t < 3; ++t)
      for (Optimizer* a : {&whole, &part}) a->step(random_floats(1000, 10 + t));
    std::vector<float> want = start;
    std::vector<float> m(201, 0.0f);
    for (int64_t i = 0; i < 1000; ++i) {
      if (i < 60 || (i >= 163 && i < 900) || i >= 997) continue;
      want[i] = whole.parameters()[i];
      m[i < 163 ? i - 60 : i - 796] = whole.m()[i];
    }
    require_same_bits("p", part.parameters(), want);
    require_same_bits("m", part.m(), m);
  }
}

TEST_CASE("adamw: the squared norm is the sum of all parts") {
  for (Backend& backend : backends()) {
    Optimizer a(backend, {1, 1}, {{0, 2, 1e-2f, 0}});
    Operands o(*backend.device);
    a.args.gradients = o.put<float>({3, 4});
    a.args.square_sums = o.put<float>({9, 0, 16});
    backend.ops->adamw(a.args);
    CHECK(o.get(a.args.gradient_square_sum) == std::vector<float>{25});
    a.args.square_sums = o.put<float>({9, kNan, 16});
    backend.ops->adamw(a.args);
    CHECK(a.counters() == std::vector<int64_t>{1, 1});
  }
}

TEST_CASE("adamw: groups that overlap or leave the parameters are refused") {
  for (Backend& backend : backends()) {
    const std::vector<float> p(10), g(10);
    const auto step = [&](const Groups& groups) { Optimizer(backend, p, groups).step(g); };
    require_message<maxim::Error>(
        [&] {
          step({{0, 5, 1, 0}, {4, 10, 1, 0}});
        },
        {"group 1 is [4, 10) after 5 of 10"});
    require_message<maxim::Error>([&] { step({{0, 11, 1, 0}}); }, {"group 0 is [0, 11)"});
    for (const int64_t shift : {-4, 2, 4})
      require_message<maxim::Error>([&] { step({{1, 9, 1, 0, shift}}); }, {"group 0, [1, 9)"});
  }
}

TEST_CASE("square_sum: against double, at sizes around the blocks") {
  for (Backend& backend : backends()) {
    CHECK(square_sum(backend, {}) == 0);
    CHECK(square_sum(backend, {3, -4}) == 25);
    // The last is more than 256 blocks of 16,384.
    for (const int64_t size : {1, 15, 16, 17, 16383, 16384, 16385, 100000, 4300000}) {
      const std::vector<float> x = random_floats(size, 1);
      double want = 0;
      for (const float v : x) want += static_cast<double>(v) * v;
      require_close("square_sum", {square_sum(backend, x)}, {want}, 0, 6e-8);
    }
    // 131,071 times 1e-4 beside a million: each alone would vanish in a sum in single precision.
    std::vector<float> x(1 << 17, 1e-2f);
    x[0] = 1000;
    require_close("small beside large", {square_sum(backend, x)},
                  {1e6 + ((1 << 17) - 1) * (static_cast<double>(1e-2f) * 1e-2f)}, 0, 6e-8);
  }
}

TEST_CASE("square_sum: NaN and infinity come through; the same bits on any number of threads") {
  for (Backend& backend : backends()) {
    std::vector<float> x = random_floats(100001, 1);
    backend.set_threads(1);
    const float one = square_sum(backend, x);
    for (const int threads : {2, 3, 5}) {
      backend.set_threads(threads);
      CHECK(square_sum(backend, x) == one);
    }
    backend.set_threads(2);
    x[100000] = -kInfinity;
    CHECK(square_sum(backend, x) == kInfinity);
    x[50] = kNan;
    CHECK(std::isnan(square_sum(backend, x)));
    CHECK(square_sum(backend, {3e38f, 3e38f}) == kInfinity);  // beyond float, not beyond double
  }
}

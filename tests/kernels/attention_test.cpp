#include "tests/reference/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/dropout.h"
#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/kernels/attention_case.h"
#include "tests/reference/arithmetic.h"
#include "tests/reference/central_difference.h"
#include "tests/reference/compare.h"
#include "tests/reference/message_of.h"

using namespace maxim_tests;

namespace {

using Case = AttentionCase;
using Results = AttentionResults;

// Inputs within [-1, 1]: a score is a sum of d products, below sqrt(d) / 3 in the mean, with d
// roundings of 2^-24 times its partial sums: 1e-6 at d = 64; the same relative error in a
// probability. Outputs are averages of values within [-1, 1] times dropout's scale (2 at most
// here).
constexpr double kBound = 3e-6;

void require_right(Backend& backend, const Case& c) {
  const std::string what =
      fmt::format("{}, {} rows, longest {}, {} heads of {}, dropout {}", backend.name,
                  c.rows.tokens(), c.rows.longest, c.heads, c.width, c.dropout.probability);
  const Results r = run(backend, c);
  const auto qkv = to_double(c.qkv);
  const Attention want = attention(qkv, c.rows, c.heads, c.width, c.dropout);
  require_close(what + ": log_sum_exp", r.log_sum_exp, want.log_sum_exp, kBound, 0, c.heads);
  require_close(what + ": out", r.out, want.out, kBound, 0, c.hidden());
  // An element of d_k or d_v is a sum over the query rows, each with the error of a probability.
  const double bound = kBound * (1 + std::sqrt(static_cast<double>(c.rows.longest)) / 8);
  require_close(what + ": d_qkv", r.d_qkv,
                attention_gradient(to_double(c.d_out), qkv, c.rows, c.heads, c.width, c.dropout),
                bound, 0, 3 * c.hidden());
}

}  // namespace

TEST_CASE("attention: two rows that can be checked on paper") {
  // q = 0: both keys weigh 1/2, so out is the mean of v, log_sum_exp = log 2, d_v = half the sum of
  // d_out, and d_q_i = sum_j 1/2 (d_out . v_j - d_out . out) k_j / sqrt(32).
  Case c({2}, 1, 32);
  std::fill(c.qkv.begin(), c.qkv.end(), 0.0f);
  std::fill(c.d_out.begin(), c.d_out.end(), 0.0f);
  const int64_t row = 96, k = 32, v = 64;
  c.qkv[v] = 2;  // v_0 = (2, 0, …), v_1 = (0, 4, 0, …)
  c.qkv[row + v + 1] = 4;
  c.qkv[k + 5] = 1;  // k_0 = e_5, k_1 = 0
  c.d_out[0] = 3;    // d_out_0 = (3, 0, …), d_out_1 = 0
  for (Backend& backend : backends()) {
    const Results r = run(backend, c);
    for (int64_t t = 0; t < 2; ++t) {
      CHECK(r.out[t * 32] == Approx(1));
      CHECK(r.out[t * 32 + 1] == Approx(2));
      CHECK(r.log_sum_exp[t] == Approx(std::log(2.0)));
      CHECK(r.d_qkv[t * row + v] == Approx(1.5));
      CHECK(r.d_qkv[t * row + k] == 0);  // q = 0
    }
    // d_out_0 . v = (6, 0), D_0 = 3: d_s = 1/2 (3, -3) / sqrt(32)
    CHECK(r.d_qkv[5] == Approx(1.5 / std::sqrt(32.0)));
    CHECK(r.d_qkv[row + 5] == 0);
  }
}

TEST_CASE("attention: lengths around the panels and tiles, ragged, with and without dropout") {
  for (Backend& backend : backends())
    for (const float probability : {0.0f, 0.1f, 0.5f}) {
      require_right(backend, Case({1, 2, 0, 3, 5, 0}, 3, 32, probability));
      require_right(backend, Case({1, 2, 0, 3, 5, 0}, 2, 64, probability));
      require_right(backend,
                    Case({7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25}, 2, 32, probability));
      require_right(backend, Case({31, 32, 33, 47, 48, 49}, 1, 64, probability));
      require_right(backend, Case({63, 64, 65, 96, 97}, 2, 32, probability));
    }
}

TEST_CASE("attention: expansion rows attend and are not attended to") {
  for (Backend& backend : backends())
    for (const float probability : {0.0f, 0.2f}) {
      const Case c({32, 5, 1, 0, 40, 17}, 2, 32, probability, 16);
      require_right(backend, c);
      const Results r = run(backend, c);
      for (size_t s = 0; s < c.rows.key_counts.size(); ++s)
        for (int64_t t = c.rows.offsets[s] + c.rows.key_counts[s]; t < c.rows.offsets[s + 1]; ++t)
          for (int64_t j = c.hidden(); j < 3 * c.hidden(); ++j)
            if (r.d_qkv[t * 3 * c.hidden() + j] != 0) FAIL("row " << t << " is no key");
    }
}

TEST_CASE("attention: lengths around the chunks of keys and blocks of rows of short sequences") {
  for (Backend& backend : backends()) {
    require_right(backend, Case({1, 0, 1}, 1, 64, 0.5f));
    require_right(backend, Case({64, 63, 0, 1}, 1, 32, 0.1f));
    require_right(backend, Case({65, 33, 96, 0}, 1, 64, 0.1f));
    require_right(backend, Case({127, 128, 1, 97}, 1, 64));
    require_right(backend, Case({129, 0, 121, 120}, 1, 64, 0.1f));
    require_right(backend, Case({160, 191, 192, 193}, 1, 32, 0.1f));
    require_right(backend, Case({223, 1, 0, 224, 225}, 1, 64));
    require_right(backend, Case({255, 0, 1, 248}, 2, 64, 0.1f));
    require_right(backend, Case({1, 256, 0, 255}, 1, 64, 0.1f));
    require_right(backend, Case({256, 240, 1}, 1, 32, 0.1f, 230));
  }
}

TEST_CASE("attention: sequences beyond what shared memory holds") {
  for (Backend& backend : backends()) {
    require_right(backend, Case({255, 3, 256, 257}, 1, 32, 0.1f));
    require_right(backend, Case({257, 0, 1, 256}, 1, 64, 0.1f));
    require_right(backend, Case({1000}, 1, 64, 0.1f));
    require_right(backend, Case({530}, 1, 32, 0, 260));
  }
}

TEST_CASE("attention: dropout keeps exactly the probabilities of the scalar definition") {
  // q = 0: every probability is 1 / n; v = the identity for 32 keys, so out shows them one by one.
  for (Backend& backend : backends())
    for (const float probability : {1e-5f, 0.1f, 0.5f, 0.999f}) {
      Case c({32, 0, 32, 32, 32}, 2, 32, probability);
      std::fill(c.qkv.begin(), c.qkv.end(), 0.0f);
      for (int64_t t = 0; t < c.rows.tokens(); ++t)
        for (int64_t h = 0; h < c.heads; ++h)
          c.qkv[t * 192 + 128 + h * 32 + c.rows.positions[t]] = 1;
      const Results r = run(backend, c);
      const auto want = attention(to_double(c.qkv), c.rows, c.heads, c.width, c.dropout).out;
      int64_t dropped = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        if ((r.out[i] != 0) != (want[i] != 0)) FAIL("probability " << i << ": masks differ");
        dropped += want[i] == 0;
      }
      const double expected = static_cast<double>(want.size()) * probability;
      CHECK(std::abs(static_cast<double>(dropped) - expected) < 6 * std::sqrt(expected) + 1);
    }
}

TEST_CASE("attention: positions, not places in the batch, decide dropout") {
  for (Backend& backend : backends()) {
    Case a({9, 20}, 2, 32, 0.3f), b({20}, 2, 32, 0.3f);
    b.rows.random_rows[0] = a.rows.random_rows[1];
    b.rows.random_columns[0] = a.rows.random_columns[1];
    b.qkv.assign(a.qkv.begin() + 9 * 192, a.qkv.end());
    b.d_out.assign(a.d_out.begin() + 9 * 64, a.d_out.end());
    const Results ra = run(backend, a), rb = run(backend, b);
    require_same_bits("out", {ra.out.begin() + 9 * 64, ra.out.end()}, rb.out);
    require_same_bits("d_qkv", {ra.d_qkv.begin() + 9 * 192, ra.d_qkv.end()}, rb.d_qkv);
  }
}

TEST_CASE("attention: scores far apart neither overflow nor lose the winner") {
  for (Backend& backend : backends()) {
    // Scores up to 40 * 40 * 32 / sqrt(32) = 9,000: nearly one-hot.
    const Case c({40, 3}, 2, 32, 0.1f, 0, 40);
    const Results r = run(backend, c);
    const Attention want = attention(to_double(c.qkv), c.rows, c.heads, c.width, c.dropout);
    // Scores of 2,000 carry errors near 2e-4, and so do probabilities: times values of 40.
    require_close("log_sum_exp", r.log_sum_exp, want.log_sum_exp, 1e-3, 1e-6);
    require_close("out", r.out, want.out, 2e-2, 1e-4);
  }
}

TEST_CASE("attention: NaN and infinity stay visible, and in their sequence") {
  for (Backend& backend : backends()) {
    for (const float bad : {std::nanf(""), HUGE_VALF}) {
      Case c({10, 10, 10}, 2, 32);
      c.qkv[15 * 192 + 64 + 3] = bad;  // k of row 5 of the second sequence, head 0
      const Results r = run(backend, c);
      for (int64_t t = 0; t < 30; ++t)
        for (int64_t j = 0; j < 64; ++j) {
          const bool spoilt = t >= 10 && t < 20 && j < 32;
          if (!spoilt && std::isnan(r.out[t * 64 + j])) FAIL("row " << t << " column " << j);
          if (spoilt && std::isnan(bad)) CHECK(std::isnan(r.out[t * 64 + j]));
        }
    }
  }
}

TEST_CASE("attention: gradients are the central differences of the forward formula") {
  for (const int64_t width : {32, 64}) {
    const Case c({3, 1, 10}, 1, width, 0.3f, 2);
    const auto d_out = to_double(c.d_out);
    const auto want = central_differences(
        [&](const std::vector<double>& qkv) {
          return weighted_sum(d_out, attention(qkv, c.rows, c.heads, c.width, c.dropout).out);
        },
        to_double(c.qkv));
    for (Backend& backend : backends())
      require_close(backend.name, run(backend, c).d_qkv, want, kBound, 0, 3 * width);
  }
}

TEST_CASE("attention: the same bits on any number of threads") {
  for (Backend& backend : backends())
    for (const Case& c : {Case({32, 1, 0, 100, 17, 270, 5}, 3, 32, 0.1f, 8),
                          Case({256, 33, 0, 1}, 1, 64, 0.1f, 8), Case({32, 31, 1}, 2, 64, 0.1f)}) {
      backend.set_threads(1);
      const Results one = run(backend, c);
      for (const int threads : {2, 3, 5}) {
        backend.set_threads(threads);
        const Results r = run(backend, c);
        require_same_bits("out", r.out, one.out);
        require_same_bits("log_sum_exp", r.log_sum_exp, one.log_sum_exp);
        require_same_bits("d_qkv", r.d_qkv, one.d_qkv);
      }
      backend.set_threads(2);
    }
}

TEST_CASE("attention: no rows, and rows without keys") {
  for (Backend& backend : backends()) {
    CHECK(run(backend, Case({}, 2, 32)).out.empty());
    CHECK(run(backend, Case({0, 0}, 2, 32)).out.empty());
    Case c({3}, 2, 32);
    c.rows.key_counts[0] = 0;
    if (backend.checks_indices) {
      require_message<maxim::Error>([&] { run(backend, c); }, {"sequence 0 has 3 rows and 0 keys"});
    } else {
      for (const float x : run(backend, c).out) CHECK(std::isnan(x));
    }
  }
}

TEST_CASE("attention: no memory after the first call, however long the sequences") {
  for (Backend& backend : make_backends()) {
    const Case small({3, 1}, 2, 32, 0.1f), large({500, 8, 700}, 2, 32, 0.1f);
    Operands o(*backend.device);
    const auto forward_and_backward = [&](const Case& c) {
      const int64_t t = c.rows.tokens();
      const maxim::AttentionForward f{.out = o.output(t, 64),
                                      .log_sum_exp = o.output(t, 2),
                                      .qkv = o.put(c.qkv, t, 192),
                                      .heads = 2};
      const maxim::AttentionBackward b{.d_qkv = o.output(t, 192),
                                       .d_out = o.put(c.d_out, t, 64),
                                       .out = f.out,
                                       .log_sum_exp = f.log_sum_exp,
                                       .qkv = f.qkv,
                                       .heads = 2};
      const maxim::Sequences sequences = o.put(c.rows);
      const int64_t before = backend.device->allocations();
      backend.ops->attention_forward(f, sequences);
      backend.ops->attention_backward(b, sequences);
      return backend.device->allocations() - before;
    };
    forward_and_backward(small);
    CHECK(forward_and_backward(large) == 0);
  }
}

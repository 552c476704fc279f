// Attention of bf16 and fp16 activations. The measure is flash-attention's: at most twice the error
// of the plain computation in the same type.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/dropout.h"
#include "tests/catch.h"
#include "tests/kernels/attention_case.h"
#include "tests/reference/arithmetic.h"
#include "tests/reference/attention.h"
#include "tests/reference/compare.h"
#include "tests/reference/rounding.h"

using namespace maxim_tests;

namespace {

using Case = AttentionCase;
using Results = AttentionResults;

// Calls f with every backend and 16-bit type that it has. A CPU has none.
template <class F>
void for_16bit_types(F f) {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      if (type != maxim::DType::f32) f(backend, type);
  SUCCEED();
}

double worst_error(const std::vector<double>& x, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(x[i] - want[i]));
  return worst;
}

// Columns [first, first + count) of rows of `columns`.
template <class T>
std::vector<T> columns_of(const std::vector<T>& x, int64_t columns, int64_t first, int64_t count) {
  std::vector<T> part;
  for (size_t row = 0; row < x.size(); row += columns)
    part.insert(part.end(), x.begin() + row + first, x.begin() + row + first + count);
  return part;
}

// Demands twice the plain computation's worst error, or that of rounding the result once, which
// nothing avoids: the plain one may be lucky where elements are few.
void require_as_good(const std::string& what, const std::vector<float>& got,
                     const std::vector<double>& plain, const std::vector<double>& want,
                     maxim::DType type, int64_t columns) {
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  const double bound = std::max(2 * worst_error(plain, want), 1.01 * roundoff(type) * largest);
  const double worst = worst_error(to_double(got), want);
  INFO(fmt::format("{}: worst error {:.3g}, plain {:.3g}, largest {:.3g}", what, worst,
                   worst_error(plain, want), largest));
  require_close(what, got, want, std::min(bound, 1e-2 * largest), 0, columns);
}

void require_right(Backend& backend, maxim::DType type, const Case& c32) {
  const Case c = c32.as(type);
  const std::string what = fmt::format("{}, {}, {} rows, longest {}, {} heads of {}, dropout {}",
                                       backend.name, maxim::name_of(type), c.rows.tokens(),
                                       c.rows.longest, c.heads, c.width, c.dropout.probability);
  const Results r = run(backend, c);
  const auto qkv = to_double(c.qkv), d_out = to_double(c.d_out);
  const Rounding round = [&](double x) {
    return double{rounded(type, {static_cast<float>(x)})[0]};
  };
  const Attention want = attention(qkv, c.rows, c.heads, c.width, c.dropout);
  const Attention plain = attention(qkv, c.rows, c.heads, c.width, c.dropout, round);
  // Products of 16-bit numbers are exact, sums and exponents f32: as in f32, and 2 ulp of exp2.
  require_close(what + ": log_sum_exp", r.log_sum_exp, want.log_sum_exp, 3e-6, 0, c.heads);
  require_as_good(what + ": out", r.out, plain.out, want.out, type, c.hidden());
  const auto d_want = attention_gradient(d_out, qkv, c.rows, c.heads, c.width, c.dropout);
  const auto d_plain = attention_gradient(d_out, qkv, c.rows, c.heads, c.width, c.dropout, round);
  const char* const names[] = {": d_q", ": d_k", ": d_v"};
  for (int i = 0; i < 3; ++i) {
    const auto part = [&](const auto& x) {
      return columns_of(x, 3 * c.hidden(), i * c.hidden(), c.hidden());
    };
    require_as_good(what + names[i], part(r.d_qkv), part(d_plain), part(d_want), type, c.hidden());
  }
}

}  // namespace

TEST_CASE("attention in 16 bits: lengths around the rows of a warp, ragged") {
  for_16bit_types([](Backend& backend, maxim::DType type) {
    for (const float probability : {0.0f, 0.1f, 0.5f}) {
      require_right(backend, type, Case({1, 2, 0, 3, 5, 0}, 3, 32, probability));
      require_right(backend, type, Case({7, 8, 9, 15, 16, 0, 1}, 2, 64, probability));
      require_right(backend, type, Case({17, 24, 31, 32, 33, 1, 0}, 2, 32, probability));
      require_right(backend, type, Case({47, 48, 49, 3, 63, 64}, 1, 64, probability));
    }
  });
}

TEST_CASE("attention in 16 bits: lengths around the tiles and stages of keys") {
  for_16bit_types([](Backend& backend, maxim::DType type) {
    require_right(backend, type, Case({65, 1, 0, 64, 63}, 2, 32, 0.1f));
    require_right(backend, type, Case({97, 127, 128}, 1, 64, 0.1f));
    require_right(backend, type, Case({129, 128, 5}, 1, 32, 0.1f));
    require_right(backend, type, Case({191, 192, 193}, 1, 64));
    require_right(backend, type, Case({239, 240, 0, 1}, 1, 32, 0.1f));
    require_right(backend, type, Case({240, 241, 40}, 1, 64, 0.1f));
    require_right(backend, type, Case({255, 0, 1, 241}, 1, 64, 0.1f));
    require_right(backend, type, Case({256, 1, 0, 33}, 1, 64, 0.1f, 20));
    require_right(backend, type, Case({256, 241, 0, 1}, 1, 32, 0.1f));
  });
}

TEST_CASE("attention in 16 bits: sequences beyond what shared memory holds") {
  for_16bit_types([](Backend& backend, maxim::DType type) {
    require_right(backend, type, Case({257, 241, 1, 0, 256}, 1, 32, 0.1f));
    require_right(backend, type, Case({257, 64, 129}, 1, 64));
    require_right(backend, type, Case({319, 320, 321}, 1, 64, 0.1f));
    require_right(backend, type, Case({384, 385}, 1, 32));
    require_right(backend, type, Case({1000}, 1, 64, 0.1f));
  });
}

TEST_CASE("attention in 16 bits: expansion rows attend and are not attended to") {
  for_16bit_types([](Backend& backend, maxim::DType type) {
    require_right(backend, type, Case({32, 5, 1, 0, 40, 17}, 2, 32, 0.2f, 16));
    require_right(backend, type, Case({96, 200, 80}, 1, 64, 0.1f, 64));
    require_right(backend, type, Case({330, 70}, 1, 32, 0, 130));
    require_right(backend, type, Case({300, 2}, 1, 64, 0.1f, 280));
  });
}

TEST_CASE("attention: a row that is no key gets zeros even when gradients are not finite") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const std::vector<int32_t>& lengths :
           {std::vector<int32_t>{32, 5, 1, 0, 97}, std::vector<int32_t>{300, 2}}) {
        Case c = Case(lengths, 2, 32, 0.1f, 30).as(type);
        std::fill(c.d_out.begin(), c.d_out.end(), HUGE_VALF);
        const Results r = run(backend, c);
        for (size_t s = 0; s < c.rows.key_counts.size(); ++s)
          for (int64_t t = c.rows.offsets[s] + c.rows.key_counts[s]; t < c.rows.offsets[s + 1]; ++t)
            for (int64_t j = c.hidden(); j < 3 * c.hidden(); ++j)
              if (r.d_qkv[t * 3 * c.hidden() + j] != 0)
                FAIL(backend.name << ", " << maxim::name_of(type) << ": row " << t << " is no key");
        SUCCEED();
      }
}

TEST_CASE("attention: both passes drop exactly the probabilities of the scalar definition") {
  // q = 0: every probability is 1 / n. v = the identity for 32 keys shows in `out` which of them
  // each query keeps; d_out = the identity for 32 queries shows in d_v which of them keep each key.
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int32_t length : {70, 256, 300})
        for (const int32_t shown : {0, 32, length - 32}) {
          Case c = Case({3, length}, 2, 32, 0.3f).as(type);
          std::fill(c.qkv.begin(), c.qkv.end(), 0.0f);
          std::fill(c.d_out.begin(), c.d_out.end(), 0.0f);
          for (int64_t i = 0; i < 32; ++i)
            for (int64_t h = 0; h < c.heads; ++h) {
              const int64_t t = 3 + shown + i;
              c.qkv[t * 192 + 128 + h * 32 + i] = 1;
              c.d_out[t * 64 + h * 32 + i] = 1;
            }
          const Results r = run(backend, c);
          const auto qkv = to_double(c.qkv);
          const auto out = attention(qkv, c.rows, c.heads, c.width, c.dropout).out;
          const auto d_qkv =
              attention_gradient(to_double(c.d_out), qkv, c.rows, c.heads, c.width, c.dropout);
          for (size_t i = 0; i < out.size(); ++i)
            if ((r.out[i] != 0) != (out[i] != 0)) FAIL(length << ", " << shown << ": out " << i);
          for (int64_t t = 0; t < c.rows.tokens(); ++t)
            for (int64_t j = 128; j < 192; ++j)
              if ((r.d_qkv[t * 192 + j] != 0) != (d_qkv[t * 192 + j] != 0))
                FAIL(length << ", " << shown << ": d_v of row " << t << ", column " << j);
          SUCCEED();
        }
}

TEST_CASE("attention in 16 bits: NaN stays visible, and in its sequence") {
  for_16bit_types([](Backend& backend, maxim::DType type) {
    for (const int32_t length : {10, 90, 256, 260}) {
      Case c = Case({length, length, length}, 2, 32).as(type);
      c.qkv[(length + 5) * 192 + 64 + 3] = std::nanf("");  // k of row 5 of the second, head 0
      const Results r = run(backend, c);
      for (int64_t t = 0; t < 3 * length; ++t)
        for (int64_t j = 0; j < 64; ++j)
          if (std::isnan(r.out[t * 64 + j]) != (t / length == 1 && j < 32))
            FAIL("row " << t << " column " << j);
      SUCCEED();
    }
  });
}

TEST_CASE("attention in 16 bits: scores far apart neither overflow nor lose the winner") {
  for_16bit_types([](Backend& backend, maxim::DType type) {
    for (const int32_t length : {40, 270}) {
      // Scores up to 8 * 8 * 32 / sqrt(32) = 360: nearly one-hot, e^-360 underflows.
      const Case c = Case({length, 3}, 2, 32, 0.1f, 0, 8).as(type);
      const Results r = run(backend, c);
      const Attention want = attention(to_double(c.qkv), c.rows, c.heads, c.width, c.dropout);
      require_close("log_sum_exp", r.log_sum_exp, want.log_sum_exp, 1e-4, 1e-6);
      // Probabilities and results are rounded once each, values are below 8 / (1 - 0.1).
      require_close("out", r.out, want.out, 2 * 9 * roundoff(type) + 1e-3);
      for (const float x : r.d_qkv)
        if (!std::isfinite(x)) FAIL("a gradient is not finite");
    }
  });
}

TEST_CASE("attention: scores far below zero do not overflow behind the last key") {
  // Scores near -16 * 16 * 32 / sqrt(32) = -1,448: the zeros behind the keys would weigh e^1448.
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int32_t length : {5, 40, 270}) {
        Case c({length}, 1, 32, 0.1f);
        for (int32_t t = 0; t < length; ++t)
          for (int64_t j = 0; j < 32; ++j) {
            c.qkv[t * 96 + j] += 16;
            c.qkv[t * 96 + 32 + j] -= 16;
          }
        const Results r = run(backend, c.as(type));
        for (const auto& results : {r.out, r.log_sum_exp, r.d_qkv})
          for (const float x : results)
            if (!std::isfinite(x)) FAIL(backend.name << ", " << length << " rows: " << x);
        SUCCEED();
      }
}

TEST_CASE("attention: no score is so large that a probability exceeds 1") {
  // A rounding of 2^-24 of a score of 1e9 or 1e11 is 60 or 6,000 in its exponent.
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const float scale : {2e4f, 2e5f})
        for (const int32_t length : {5, 40, 270}) {
          if (type == maxim::DType::f16 && scale > 65504) continue;
          Case c({length, 7}, 1, 32, 0.1f, 0, scale);
          for (int64_t t = 0; t < c.rows.tokens(); ++t)
            for (int64_t j = 64; j < 96; ++j) c.qkv[t * 96 + j] /= 100 * scale;  // v
          const Results r = run(backend, c.as(type));
          INFO(fmt::format("{}, {}, {} rows, {}", backend.name, maxim::name_of(type), length,
                           scale));
          // Of out: a mean of values below 0.01 / 0.9. Of d_q and d_k: p (dp - delta) k.
          for (const float x : r.out) REQUIRE(std::abs(x) < 0.0112f);
          for (const auto& results : {r.log_sum_exp, r.d_qkv})
            for (const float x : results) REQUIRE(std::isfinite(x));
        }
}

TEST_CASE("attention in 16 bits: the same bits in any order of threads") {
  for_16bit_types([](Backend& backend, maxim::DType type) {
    for (const std::vector<int32_t>& lengths :
         {std::vector<int32_t>{32, 1, 0, 100, 17, 5}, std::vector<int32_t>{256, 33, 1},
          std::vector<int32_t>{270, 33, 1}}) {
      const Case c = Case(lengths, 2, 32, 0.1f, 8).as(type);
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
  });
}

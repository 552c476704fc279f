// gather_rows, scatter_rows, convert, add_column_sums
#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/compare.h"

using namespace maxim_tests;

namespace {

std::vector<float> gather(Backend& backend, const std::vector<float>& x, int64_t columns,
                          const std::vector<int32_t>& rows) {
  Operands o(*backend.device);
  const maxim::Tensor y = o.output(static_cast<int64_t>(rows.size()), columns);
  backend.ops->gather_rows(y, o.put(x, static_cast<int64_t>(x.size()) / columns, columns),
                           o.put(rows));
  return o.get(y);
}

std::vector<float> scatter(Backend& backend, const std::vector<float>& y, int64_t columns,
                           const std::vector<int32_t>& rows, int64_t all) {
  Operands o(*backend.device);
  const maxim::Tensor x = o.output(all, columns);
  backend.ops->scatter_rows(x, o.put(y, static_cast<int64_t>(rows.size()), columns), o.put(rows));
  return o.get(x);
}

std::vector<float> add_column_sums(Backend& backend, const std::vector<float>& x, int64_t columns,
                                   maxim::DType type = maxim::DType::f32) {
  Operands o(*backend.device);
  const maxim::Tensor out = o.put(std::vector<float>(columns, 0.25f));
  backend.ops->add_column_sums(out,
                               o.put(x, static_cast<int64_t>(x.size()) / columns, columns, type));
  return o.get(out);
}

}  // namespace

TEST_CASE("gather_rows and scatter_rows: on paper") {
  for (Backend& backend : backends()) {
    CHECK(gather(backend, {1, 2, 3, 4, 5, 6}, 2, {0, 2}) == std::vector<float>{1, 2, 5, 6});
    CHECK(scatter(backend, {1, 2, 5, 6}, 2, {1, 3}, 5) ==
          std::vector<float>{0, 0, 1, 2, 0, 0, 5, 6, 0, 0});
  }
}

TEST_CASE("gather_rows and scatter_rows: ends, all, none, any width and number of threads") {
  constexpr int64_t kRows = 70;
  std::vector<int32_t> all(kRows), odd;
  for (int32_t i = 0; i < kRows; ++i) {
    all[i] = i;
    if (i % 2 == 1) odd.push_back(i);
  }
  for (Backend& backend : backends())
    for (const int threads : {1, 2, 3}) {
      backend.set_threads(threads);
      for (const int64_t columns : {1, 15, 16, 17, 128})
        for (const auto& rows : {all, odd, {}, {0}, {kRows - 1}, {0, 1, 2, kRows - 1}}) {
          const auto x = random_floats(kRows * columns, 1);
          std::vector<float> few, spread(kRows * columns, 0.0f);
          for (const int32_t r : rows)
            for (int64_t j = 0; j < columns; ++j) {
              few.push_back(x[r * columns + j]);
              spread[r * columns + j] = x[r * columns + j];
            }
          require_same_bits("gather", gather(backend, x, columns, rows), few);
          require_same_bits("scatter", scatter(backend, few, columns, rows, kRows), spread);
        }
      CHECK(scatter(backend, {}, 4, {}, 0).empty());
      backend.set_threads(2);
    }
}

TEST_CASE("gather_rows and scatter_rows: rows of 16-bit elements, odd widths and offsets") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int64_t columns : {1, 2, 7, 8, 24, 600})
        for (const int64_t skipped :
             {0, 1}) {  // rows before: an address that is not a multiple of 16
          const auto x = rounded(type, random_floats(6 * columns, 1));
          const std::vector<int32_t> rows = {0, 3, 4};
          Operands o(*backend.device);
          const maxim::Tensor all = o.put(x, 6, columns, type).slice(skipped, 6);
          const maxim::Tensor few = o.output(3, columns, type), list = o.put(rows);
          backend.ops->gather_rows(few, all, list);
          const maxim::Tensor back = o.output(6, columns, type).slice(skipped, 6);
          backend.ops->scatter_rows(back, few, list);
          std::vector<float> want_few, want_back((6 - skipped) * columns);
          for (const int32_t row : rows)
            for (int64_t j = 0; j < columns; ++j) {
              want_few.push_back(x[(row + skipped) * columns + j]);
              want_back[row * columns + j] = want_few.back();
            }
          require_same_bits("gather", o.get(few), want_few);
          require_same_bits("scatter", o.get(back), want_back);
        }
}

TEST_CASE("gather_rows and scatter_rows: rows that are outside or not ascending are refused") {
  const std::vector<float> x(4 * 2, 1.0f);
  for (Backend& backend : backends())
    for (const std::vector<int32_t>& rows :
         std::vector<std::vector<int32_t>>{{1, 4}, {-1, 2}, {2, 1}, {1, 1}}) {
      if (!backend.checks_indices) continue;
      CHECK_THROWS_AS(gather(backend, x, 2, rows), maxim::Error);
      CHECK_THROWS_AS(scatter(backend, {1, 2, 3, 4}, 2, rows, 4), maxim::Error);
    }
}

TEST_CASE(
    "gather_rows and scatter_rows: where indices are not checked, rows outside are NaN or lost") {
  for (Backend& backend : backends()) {
    if (backend.checks_indices) {
      SUCCEED();
      continue;
    }
    for (const int32_t outside : {-100000, -1, 4, 100000}) {
      const std::vector<int32_t> rows =
          outside < 0 ? std::vector<int32_t>{outside, 2} : std::vector<int32_t>{2, outside};
      const auto few = gather(backend, {1, 2, 3, 4, 5, 6, 7, 8}, 2, rows);
      for (int i = 0; i < 4; ++i) CHECK(std::isnan(few[i]) == (rows[i / 2] == outside));
      const auto all = scatter(backend, {1, 1, 1, 1}, 2, rows, 4);
      CHECK(all == std::vector<float>{0, 0, 0, 0, 1, 1, 0, 0});
    }
  }
}

TEST_CASE("convert: between all float types, rounded to nearest, ties to even") {
  for (Backend& backend : backends())
    for (const maxim::DType from : backend.types)
      for (const maxim::DType to : backend.types)
        for (const int64_t size : {0, 1, 7, 8, 9, 2047, 2048, 2049}) {
          auto x = random_floats(size, 1, 3);
          // Half way between neighbours: bf16 1 + 2^-8 and 1 + 3 * 2^-8, f16 1 + 2^-11.
          const std::vector<float> special = {1 + 0x1p-8f,   1 + 3 * 0x1p-8f, 1 + 0x1p-11f,
                                              std::nanf(""), 1e30f,           -1e-30f};
          std::copy_n(special.begin(), std::min<int64_t>(6, size), x.begin());
          x = rounded(from, x);
          Operands o(*backend.device);
          const maxim::Tensor y = o.output(size, 1, to);
          backend.ops->convert(y, o.put(x, size, 1, from));
          const auto got = o.get(y), want = rounded(to, x);
          for (int64_t i = 0; i < size; ++i)
            if (got[i] != want[i] && !(std::isnan(got[i]) && std::isnan(want[i])))
              FAIL(maxim::name_of(from) << " to " << maxim::name_of(to) << ", " << i << ": "
                                        << got[i] << ", not " << want[i]);
        }
  SUCCEED();
}

TEST_CASE("add_column_sums: adds the sums, at any size, and bits do not depend on the threads") {
  for (Backend& backend : backends()) {
    CHECK(add_column_sums(backend, {1, 2, 3, 4}, 2) == std::vector<float>{4.25, 6.25});
    CHECK(add_column_sums(backend, {}, 3) == std::vector<float>(3, 0.25f));
    for (const int64_t rows : {1, 31, 32, 33, 64, 65, 2048, 2049, 3000})
      for (const int64_t columns : {1, 16, 19, 70}) {
        const auto x = random_floats(rows * columns, 1);
        backend.set_threads(1);
        const auto one = add_column_sums(backend, x, columns);
        // Two levels of sums of at most 64 terms below 1: 64 roundings of at most 2^-24 * 8 (the
        // usual size of a sum of thousands of random signs is below 64), mostly cancelling.
        require_close(fmt::format("{} [{}, {}]", backend.name, rows, columns), one,
                      sum(std::vector<double>(columns, 0.25), column_sums(to_double(x), columns)),
                      std::ldexp(std::sqrt(static_cast<double>(rows)), -20));
        for (const int threads : {2, 3}) {
          backend.set_threads(threads);
          require_same_bits("threads", add_column_sums(backend, x, columns), one);
        }
      }
    backend.set_threads(2);
  }
}

TEST_CASE("add_column_sums: 16-bit elements, widths around a GPU's tiles") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int64_t columns : {31, 32, 33, 128, 132, 256, 264}) {
        const auto x = rounded(type, random_floats(40 * columns, 1));
        require_close(fmt::format("{} [40, {}] {}", backend.name, columns, maxim::name_of(type)),
                      add_column_sums(backend, x, columns, type),
                      sum(std::vector<double>(columns, 0.25), column_sums(to_double(x), columns)),
                      std::ldexp(std::sqrt(40.0), -20));
      }
}

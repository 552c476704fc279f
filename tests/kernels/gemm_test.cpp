#include "tests/reference/gemm.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/compare.h"

using namespace maxim_tests;

namespace {

// Whole numbers from -4 to 4: sums of products are exact in float, so any order gives equal bits.
std::vector<float> small_integers(int64_t count, uint32_t seed) {
  std::vector<float> values;
  for (const int32_t v : random_integers(count, 9, seed)) values.push_back(v - 4.0f);
  return values;
}

enum class Start { nothing, bias, accumulate };

// What an operation leaves in c, and what the double loops say.
struct Result {
  std::vector<float> got;
  std::vector<double> want;
};

Result multiply(Backend& backend, const GemmCase& s, Start start, const std::vector<float>& a,
                const std::vector<float>& b) {
  Operands operands(*backend.device);
  const std::vector<float> bias = small_integers(s.n, 3), before = small_integers(s.m * s.n, 4);
  maxim::GemmArgs args;
  args.a = s.transpose_a ? operands.put(a, s.k, s.m) : operands.put(a, s.m, s.k);
  args.b = s.transpose_b ? operands.put(b, s.n, s.k) : operands.put(b, s.k, s.n);
  args.transpose_a = s.transpose_a;
  args.transpose_b = s.transpose_b;
  args.accumulate = start == Start::accumulate;
  args.c = args.accumulate ? operands.put(before, s.m, s.n) : operands.output(s.m, s.n);
  if (start == Start::bias) args.bias = operands.put(bias);
  backend.ops->gemm(args);
  std::vector<double> initial(s.m * s.n);
  for (int64_t i = 0; i < s.m * s.n; ++i)
    initial[i] = start == Start::bias ? bias[i % s.n] : args.accumulate ? before[i] : 0;
  return {operands.get(args.c), gemm(s, to_double(a), to_double(b), initial)};
}

void require_exact(Backend& backend, const GemmCase& s) {
  for (const Start start : {Start::nothing, Start::bias, Start::accumulate}) {
    const Result r =
        multiply(backend, s, start, small_integers(s.m * s.k, 1), small_integers(s.k * s.n, 2));
    const std::string what =
        fmt::format("{} [{}, {}] k {} transposes {}{} start {}", backend.name, s.m, s.n, s.k,
                    s.transpose_a, s.transpose_b, static_cast<int>(start));
    require_same_bits(what, r.got, to_float(r.want));
  }
}

}  // namespace

TEST_CASE("gemm: a product that can be checked on paper") {
  for (Backend& backend : backends()) {
    Operands operands(*backend.device);
    const std::vector<float> a = {1, 2, 3, 4}, b = {5, 6, 7, 8}, bias = {100, 200};
    maxim::GemmArgs args{
        .c = operands.output(2, 2), .a = operands.put(a, 2, 2), .b = operands.put(b, 2, 2)};
    args.bias = operands.put(bias);
    backend.ops->gemm(args);
    CHECK(operands.get(args.c) == std::vector<float>{119, 222, 143, 250});
    args.transpose_b = true;  // [1 2; 3 4] [5 7; 6 8]
    backend.ops->gemm(args);
    CHECK(operands.get(args.c) == std::vector<float>{117, 223, 139, 253});
    args.transpose_a = true;  // += [1 3; 2 4] [5 7; 6 8]
    args.bias = maxim::Tensor();
    args.accumulate = true;
    backend.ops->gemm(args);
    CHECK(operands.get(args.c) == std::vector<float>{117 + 23, 223 + 31, 139 + 34, 253 + 46});
  }
}

TEST_CASE("gemm: every transpose, bias and accumulation at sizes around the tiles") {
  for (Backend& backend : backends())
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        for (const int64_t m : {1, 15, 16, 17, 33})
          for (const int64_t n : {1, 3, 16, 31, 65})
            for (const int64_t k : {1, 7, 64})
              require_exact(backend, {m, n, k, transpose_a, transpose_b});
        require_exact(backend, {130, 97, 129, transpose_a, transpose_b});  // more than one thread
      }
}

// The emulated cuBLASLt has no algorithm for 16 bits, so both ways are run.
TEST_CASE("gemm: column sums of a beside a product, in each type") {
  constexpr float kBefore = 0.25f;
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                       {16, 8, 33},
                                                                       {24, 8, 100},
                                                                       {200, 16, 7},
                                                                       {8, 0, 5},
                                                                       {8, 8, 0},
                                                                       {300, 8, 2}}) {
        INFO(backend.name << ", " << maxim::name_of(type) << " [" << m << ", " << n << "] k " << k);
        Operands operands(*backend.device);
        const std::vector<float> a = small_integers(k * m, 1), b = small_integers(k * n, 2);
        const maxim::GemmArgs args{.c = operands.zeros(m, n),
                                   .a = operands.put(a, k, m, type),
                                   .b = operands.put(b, k, n, type),
                                   .transpose_a = true,
                                   .accumulate = true,
                                   .a_sums = operands.put(std::vector<float>(m, kBefore))};
        for (int times = 1; times <= 2; ++times) {  // it adds
          backend.ops->gemm(args);
          std::vector<float> sums(m, kBefore);
          for (int64_t i = 0; i < k * m; ++i) sums[i % m] += static_cast<float>(times) * a[i];
          require_same_bits("sums", operands.get(args.a_sums), sums);
        }
        std::vector<double> twice =
            gemm({m, n, k, true, false}, to_double(a), to_double(b), std::vector<double>(m * n));
        for (double& x : twice) x *= 2;
        require_same_bits("product", operands.get(args.c), to_float(twice));
      }
}

TEST_CASE("gemm: equal shapes of other types and at other alignments") {
  // What is known of a shape does not hold for another type of c or a smaller alignment.
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int odd : {-1, 0, 1, 2}) {  // which of the operands is not at a multiple of 16
        Operands operands(*backend.device);
        const int64_t m = 8, n = 8, k = 8;
        const std::vector<float> a = small_integers(m * k, 1), b = small_integers(k * n, 2);
        const auto place = [&](int which, std::vector<float> values, maxim::DType as) {
          const int64_t skipped = which == odd ? 2 : 0;
          values.insert(values.begin(), skipped, 0.0f);
          const auto size = static_cast<int64_t>(values.size());
          return operands.put(values, size, 1, as).slice(skipped, size).reshape(8, 8);
        };
        for (const maxim::DType result : {maxim::DType::f32, type}) {
          const maxim::GemmArgs args{.c = place(2, std::vector<float>(m * n), result),
                                     .a = place(0, a, type),
                                     .b = place(1, b, type)};
          backend.ops->gemm(args);
          require_same_bits(fmt::format("{} {} into {}, operand {}", backend.name,
                                        maxim::name_of(type), maxim::name_of(result), odd),
                            operands.get(args.c),
                            to_float(gemm({m, n, k, false, false}, to_double(a), to_double(b),
                                          std::vector<double>(m * n))));
        }
      }
}

TEST_CASE("gemm: zero sizes") {
  for (Backend& backend : backends())
    for (const auto& [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{0, 5, 3}, {5, 0, 3}, {5, 3, 0}, {0, 0, 0}, {1, 1, 0}})
      for (const bool transposed : {false, true})
        require_exact(backend, {m, n, k, transposed, transposed});
}

TEST_CASE("gemm: more shapes than a backend remembers") {
  for (Backend& backend : backends())
    for (int64_t m = 1; m <= 4100; ++m) {
      const Result r = multiply(backend, {m, 1, 2}, Start::nothing, small_integers(2 * m, 1),
                                small_integers(2, 2));
      require_same_bits(fmt::format("{}, {} rows", backend.name, m), r.got, to_float(r.want));
    }
  SUCCEED();
}

TEST_CASE("gemm: the shapes of MiniLM on real numbers") {
  // Products of numbers in [-1, 1) have variance 1/9, their sum over k reaches sqrt(k) / 3, and
  // each of k roundings is at most 2^-24 of it. In random directions they add up to 2^-24 k / 3;
  // the largest of some hundred thousand is about five times that, well within 2^-23 k.
  for (Backend& backend : backends())
    for (const GemmCase& s : std::vector<GemmCase>{{77, 384, 1536, false, true},
                                                   {77, 384, 384, false, false},
                                                   {384, 128, 77, true, false}}) {
      const Result r = multiply(backend, s, Start::bias, random_floats(s.m * s.k, 5),
                                random_floats(s.k * s.n, 6));
      require_close(backend.name, r.got, r.want, std::ldexp(s.k, -23), 1e-6, s.n);
    }
}

TEST_CASE("gemm: a NaN stays in its row") {
  for (Backend& backend : backends()) {
    std::vector<float> a = small_integers(40 * 8, 1);
    a[17 * 8 + 3] = std::nanf("");
    const Result r = multiply(backend, {40, 20, 8}, Start::nothing, a, small_integers(8 * 20, 2));
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t j = 0; j < 20; ++j)
        if (std::isnan(r.got[i * 20 + j]) != (i == 17)) FAIL("row " << i << " column " << j);
    SUCCEED();
  }
}

TEST_CASE("gemm: the same number of threads gives the same bits") {
  const GemmCase s{200, 120, 300, false, true};
  const auto a = random_floats(s.m * s.k, 5), b = random_floats(s.k * s.n, 6);
  for (Backend& backend : backends())
    for (const int threads : {1, 2, 3, 4}) {
      backend.set_threads(threads);
      const auto first = multiply(backend, s, Start::bias, a, b);
      require_same_bits(fmt::format("{}, {} threads", backend.name, threads), first.got,
                        multiply(backend, s, Start::bias, a, b).got);
      require_close(backend.name, first.got, first.want, std::ldexp(s.k, -23), 1e-6, s.n);
    }
  for (Backend& backend : backends()) backend.set_threads(2);
}

TEST_CASE("gemm: shapes that do not fit are refused") {
  for (Backend& backend : backends()) {
    Operands operands(*backend.device);
    const maxim::GemmArgs good{
        .c = operands.output(4, 5), .a = operands.zeros(4, 6), .b = operands.zeros(6, 5)};
    backend.ops->gemm(good);
    maxim::GemmArgs args = good;
    args.transpose_a = true;
    CHECK_THROWS_AS(backend.ops->gemm(args), maxim::Error);
    args = good;
    args.b = operands.zeros(7, 5);
    CHECK_THROWS_AS(backend.ops->gemm(args), maxim::Error);
    args = good;
    args.bias = operands.zeros(4);
    CHECK_THROWS_AS(backend.ops->gemm(args), maxim::Error);
    args = good;
    args.bias = operands.zeros(5);
    args.accumulate = true;
    CHECK_THROWS_AS(backend.ops->gemm(args), maxim::Error);
    args = good;
    args.a_sums = operands.zeros(4);  // of an a that is not transposed
    CHECK_THROWS_AS(backend.ops->gemm(args), maxim::Error);
  }
}

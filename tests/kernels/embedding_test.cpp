#include "tests/reference/embedding.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/backends.h"
#include "tests/reference/central_difference.h"
#include "tests/reference/compare.h"
#include "tests/reference/dropout.h"
#include "tests/reference/layer_norm.h"

using namespace maxim_tests;

namespace {

constexpr float kEpsilon = 1e-6f;
constexpr int64_t kTypes = 2;

struct Case {
  Ragged rows;
  int64_t h, vocabulary, positions;
  maxim::Dropout dropout;
  maxim::DType type_of_rows;
  std::vector<float> word, position, type, gamma, beta, d_y;

  Case(const std::vector<int32_t>& lengths, int64_t columns, float probability = 0,
       int32_t words = 20, maxim::DType type_ = maxim::DType::f32)
      : rows(ragged(lengths, words)),
        h(columns),
        vocabulary(words + 3),
        positions(rows.longest + 2),
        dropout{probability, 99, 3, 0},
        type_of_rows(type_) {
    word = random_floats(vocabulary * h, 1);
    position = random_floats(positions * h, 2);
    type = random_floats(kTypes * h, 3);
    gamma = random_floats(h, 4);
    beta = random_floats(h, 5);
    d_y = rounded(type_of_rows, random_floats(rows.tokens() * h, 6));
  }
  std::vector<double> multipliers() const { return dropout_multipliers(dropout, rows, h); }
};

struct Results {
  std::vector<float> y, s, mean, rstd, applied;
  std::vector<float> d_word, d_position, d_type, d_gamma, d_beta;
};

constexpr float kBefore = 0.25f;

Results run(Backend& backend, const Case& c) {
  Operands o(*backend.device);
  const maxim::Sequences sequences = o.put(c.rows);
  const int64_t t = c.rows.tokens(), h = c.h;
  maxim::EmbeddingForward f{.y = o.output(t, h, c.type_of_rows),
                            .s = o.output(t, h, c.type_of_rows),
                            .mean = o.output(t),
                            .rstd = o.output(t),
                            .word = o.put(c.word, c.vocabulary, h),
                            .position = o.put(c.position, c.positions, h),
                            .type = o.put(c.type, kTypes, h),
                            .gamma = o.put(c.gamma),
                            .beta = o.put(c.beta),
                            .epsilon = kEpsilon,
                            .dropout = c.dropout};
  backend.ops->embedding_forward(f, sequences);
  Results r;
  r.y = o.get(f.y);
  r.s = o.get(f.s);
  r.mean = o.get(f.mean);
  r.rstd = o.get(f.rstd);
  f.y = o.output(t, h, c.type_of_rows);
  backend.ops->embedding_apply(f, sequences);
  r.applied = o.get(f.y);
  const auto before = [&](int64_t rows) {
    return o.put(std::vector<float>(rows * h, kBefore), rows, h);
  };
  const maxim::EmbeddingBackward b{.d_word = before(c.vocabulary),
                                   .d_position = before(c.positions),
                                   .d_type = before(kTypes),
                                   .d_gamma = before(1).reshape(1, h),
                                   .d_beta = before(1),
                                   .d_y = o.put(c.d_y, t, h, c.type_of_rows),
                                   .s = f.s,
                                   .mean = f.mean,
                                   .rstd = f.rstd,
                                   .gamma = f.gamma,
                                   .dropout = c.dropout};
  backend.ops->embedding_backward(b, sequences);
  r.d_word = o.get(b.d_word);
  r.d_position = o.get(b.d_position);
  r.d_type = o.get(b.d_type);
  r.d_gamma = o.get(b.d_gamma);
  r.d_beta = o.get(b.d_beta);
  return r;
}

std::vector<double> filled(int64_t size) { return std::vector<double>(size, kBefore); }

// As in layer_norm_test.cpp: some ten roundings of values below 8.
constexpr double kBound = 4e-6;

// `unit`: the rounding of each result to its type. What follows from the stored s is held against
// the formula of the stored s. The words' and positions' gradients add up a d_s that was rounded
// too: at worst all terms in one direction.
void require_right(Backend& backend, const Case& c) {
  const std::string what =
      fmt::format("{}, {} rows of {}, dropout {}, {}", backend.name, c.rows.tokens(), c.h,
                  c.dropout.probability, maxim::name_of(c.type_of_rows));
  const double unit = c.type_of_rows == maxim::DType::f32 ? 0 : roundoff(c.type_of_rows);
  const Results r = run(backend, c);
  const auto multipliers = c.multipliers();
  const auto exact =
      embedding_sum(c.rows, to_double(c.word), to_double(c.position), to_double(c.type), c.h);
  require_close(what + ": s", r.s, exact, 4e-7, unit, c.h);
  const auto s = unit == 0 ? exact : to_double(r.s);
  const LayerNorm want = layer_norm(s, to_double(c.gamma), to_double(c.beta), kEpsilon);
  require_close(what + ": mean", r.mean, want.mean, 1e-6);
  require_close(what + ": rstd", r.rstd, want.rstd, 0, 2e-6);
  require_close(what + ": y", r.y, product(want.y, multipliers), kBound, unit, c.h);
  require_same_bits(what + ": apply", r.applied, r.y);

  const LayerNormGradients g =
      layer_norm_gradients(product(to_double(c.d_y), multipliers), s, to_double(c.gamma), kEpsilon);
  auto d_word = filled(c.word.size()), d_position = filled(c.position.size());
  auto d_type = filled(c.type.size()), before = filled(c.h);
  add_rows(d_word, g.d_s, c.rows.token_ids, c.h);
  add_rows(d_position, g.d_s, c.rows.positions, c.h);
  add_rows(d_type, g.d_s, std::vector<int32_t>(c.rows.tokens()), c.h);
  const double sum_bound = kBound * (1 + std::sqrt(static_cast<double>(c.rows.tokens())));
  const auto table_bound = [&](int64_t size, const std::vector<int32_t>& rows) {
    std::vector<double> sizes(size), terms;
    for (const double d : g.d_s) terms.push_back(std::abs(d));
    add_rows(sizes, terms, rows, c.h);
    return sum_bound + unit * *std::max_element(sizes.begin(), sizes.end());
  };
  require_close(what + ": d_word", r.d_word, d_word, table_bound(c.word.size(), c.rows.token_ids),
                1e-6, c.h);
  require_close(what + ": d_position", r.d_position, d_position,
                table_bound(c.position.size(), c.rows.positions), 1e-6, c.h);
  require_close(what + ": d_type", r.d_type, d_type, sum_bound, 1e-6, c.h);
  require_close(what + ": d_gamma", r.d_gamma, sum(before, g.d_gamma), sum_bound, 1e-6);
  require_close(what + ": d_beta", r.d_beta, sum(before, g.d_beta), sum_bound, 1e-6);
}

}  // namespace

TEST_CASE("embedding: the sum of three rows, on paper") {
  for (Backend& backend : backends()) {
    Operands o(*backend.device);
    Ragged rows = ragged({2});
    rows.token_ids = {2, 0};
    const maxim::EmbeddingForward f{.y = o.output(2, 2),
                                    .s = o.output(2, 2),
                                    .mean = o.output(2),
                                    .rstd = o.output(2),
                                    .word = o.put<float>({1, 2, 3, 4, 5, 6}, 3, 2),
                                    .position = o.put<float>({10, 20, 30, 50}, 2, 2),
                                    .type = o.put<float>({100, 200}, 1, 2),
                                    .gamma = o.put<float>({1, 1}),
                                    .beta = o.put<float>({0, 0})};
    backend.ops->embedding_forward(f, o.put(rows));
    CHECK(o.get(f.s) == std::vector<float>{115, 226, 131, 252});
    CHECK(o.get(f.mean) == std::vector<float>{170.5, 191.5});
    require_close("y", o.get(f.y), {-1, 1, -1, 1}, 1e-6);
  }
}

TEST_CASE("embedding: widths around the vectors, ragged sequences, words that come again") {
  for (Backend& backend : backends())
    for (const float probability : {0.0f, 0.1f}) {
      for (const int64_t h : {3, 15, 16, 17, 33, 64, 384})
        require_right(backend, Case({3, 1, 0, 7}, h, probability));
      require_right(backend, Case({1}, 32, probability));
      require_right(backend, Case({100, 1, 500, 33}, 40, probability, 3));
      require_right(backend, Case(std::vector<int32_t>(43, 2), 12, probability));
    }
}

TEST_CASE("embedding: rows of a warp and rows of a block, 16-bit activations") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      for (const int64_t h : {8, 13, 264, 513, 1024, 1032})
        require_right(backend, Case({3, 1, 0, 2}, h, 0.1f, 20, type));
      require_right(backend, Case({40, 33}, 24, 0, 300, type));
    }
}

TEST_CASE("embedding: runs of a word that begin, end and go on at the edges of 32 sorted tokens") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      if (type == maxim::DType::bf16) continue;  // hundreds of its roundings prove nothing
      for (const std::vector<int>& runs : std::vector<std::vector<int>>{
               {32}, {33}, {31, 1}, {31, 2}, {32, 1}, {1, 31, 32}, {5, 100, 5}, {16, 32, 48, 1}}) {
        std::vector<int32_t> ids;
        for (size_t word = 0; word < runs.size(); ++word)
          ids.insert(ids.end(), runs[word], static_cast<int32_t>(2 * word + 1));
        // Any order of the tokens: every 7th, as no length is a multiple of 7 here.
        Case c({static_cast<int32_t>(ids.size())}, 12, 0, 20, type);
        for (size_t i = 0; i < ids.size(); ++i) c.rows.token_ids[i * 7 % ids.size()] = ids[i];
        require_right(backend, c);
      }
      if (type != maxim::DType::f32) continue;
      // More than 1,024 pieces of 32 tokens: pieces of 64.
      require_right(backend, Case({20000, 12800}, 4, 0, 200));
      // A word in more than 33 and in more than 65 pieces.
      require_right(backend, Case({1200}, 4, 0, 1));
      require_right(backend, Case({2500}, 4, 0, 1));
    }
}

TEST_CASE("embedding: no rows change nothing") {
  for (Backend& backend : backends()) {
    const Results r = run(backend, Case({}, 32, 0.1f));
    CHECK(r.y.empty());
    CHECK(r.d_word == std::vector<float>(r.d_word.size(), kBefore));
    CHECK(r.d_type == std::vector<float>(r.d_type.size(), kBefore));
  }
}

TEST_CASE("embedding: rows that no token used keep their bits") {
  for (Backend& backend : backends()) {
    const Case c({4, 2}, 24, 0.1f);
    const Results r = run(backend, c);
    for (int64_t id = 0; id < c.vocabulary; ++id) {
      const auto& ids = c.rows.token_ids;
      const bool used = std::find(ids.begin(), ids.end(), id) != ids.end();
      const std::vector<float> row(r.d_word.begin() + id * c.h, r.d_word.begin() + (id + 1) * c.h);
      CHECK((row == std::vector<float>(c.h, kBefore)) == !used);
    }
    // Position c.rows.longest and beyond, and type row 1, are never used.
    for (int64_t i = c.rows.longest * c.h; i < c.positions * c.h; ++i)
      if (r.d_position[i] != kBefore) FAIL("d_position[" << i << "]");
    for (int64_t i = c.h; i < kTypes * c.h; ++i)
      if (r.d_type[i] != kBefore) FAIL("d_type[" << i << "]");
  }
}

TEST_CASE("embedding: gradients are the central differences of the forward formula") {
  Case c({3, 2}, 9, 0.3f, 3);  // 5 tokens of 3 words: some word comes twice
  const auto multipliers = c.multipliers(), d_y = to_double(c.d_y);
  const auto word = to_double(c.word), position = to_double(c.position), type = to_double(c.type);
  const auto gamma = to_double(c.gamma), beta = to_double(c.beta);
  const auto loss = [&](const auto& word_, const auto& position_, const auto& type_,
                        const auto& gamma_, const auto& beta_) {
    const auto s = embedding_sum(c.rows, word_, position_, type_, c.h);
    return weighted_sum(d_y, product(layer_norm(s, gamma_, beta_, kEpsilon).y, multipliers));
  };
  using Values = const std::vector<double>&;
  const auto want = [&](const auto& f, Values at) {
    return sum(filled(at.size()), central_differences(f, at));
  };
  for (Backend& backend : backends()) {
    const Results r = run(backend, c);
    require_close("d_word", r.d_word,
                  want([&](Values v) { return loss(v, position, type, gamma, beta); }, word),
                  4 * kBound);
    require_close("d_position", r.d_position,
                  want([&](Values v) { return loss(word, v, type, gamma, beta); }, position),
                  4 * kBound);
    require_close("d_type", r.d_type,
                  want([&](Values v) { return loss(word, position, v, gamma, beta); }, type),
                  4 * kBound);
    require_close("d_gamma", r.d_gamma,
                  want([&](Values v) { return loss(word, position, type, v, beta); }, gamma),
                  4 * kBound);
    require_close("d_beta", r.d_beta,
                  want([&](Values v) { return loss(word, position, type, gamma, v); }, beta),
                  4 * kBound);
  }
}

TEST_CASE("embedding: an id or position beyond its table is refused, or its row is NaN") {
  for (Backend& backend : backends())
    for (const int fault : {0, 1, 2, 3}) {
      Case c({4, 3}, 16);
      const int64_t row = fault == 0 ? 5 : fault == 1 ? 0 : fault == 2 ? 3 : 6;
      if (fault == 0) c.rows.token_ids[row] = static_cast<int32_t>(c.vocabulary);
      if (fault == 1) c.rows.token_ids[row] = -1;
      if (fault == 2) c.rows.positions[row] = static_cast<int32_t>(c.positions);
      if (fault == 3) c.rows.positions[row] = -1;
      if (backend.checks_indices) {
        CHECK_THROWS_AS(run(backend, c), maxim::Error);
        continue;
      }
      const Results r = run(backend, c);
      for (size_t i = 0; i < r.y.size(); ++i)
        if (std::isnan(r.y[i]) != (static_cast<int64_t>(i) / c.h == row)) FAIL("y[" << i << "]");
      CHECK(std::isnan(r.d_type[0]));
    }
}

TEST_CASE("embedding: a token beyond its table takes nothing from the words in it") {
  for (Backend& backend : backends()) {
    if (backend.checks_indices) {
      SUCCEED();
      continue;
    }
    // Sorting by all bits of the ids of 32 words, and not by that of the fault, would put it in the
    // midst of word 0.
    Case bad({96}, 8, 0, 29), other({96}, 8, 0, 29);
    REQUIRE(bad.vocabulary == 32);
    for (Case* c : {&bad, &other}) std::fill_n(c->rows.token_ids.begin(), 96, 0);
    bad.rows.token_ids[40] = 32;
    other.rows.token_ids[40] = 1;
    const Results r = run(backend, bad), want = run(backend, other);
    require_same_bits("word 0", {r.d_word.begin(), r.d_word.begin() + 8},
                      {want.d_word.begin(), want.d_word.begin() + 8});
    for (size_t i = 8; i < r.d_word.size(); ++i) CHECK(r.d_word[i] == kBefore);
  }
}

TEST_CASE("embedding: bits do not depend on the threads") {
  for (Backend& backend : backends()) {
    const Case c({300, 1, 77}, 100, 0.1f, 7);
    backend.set_threads(1);
    const Results one = run(backend, c);
    for (const int threads : {2, 3}) {
      backend.set_threads(threads);
      const Results r = run(backend, c);
      for (const auto member :
           {&Results::y, &Results::s, &Results::mean, &Results::rstd, &Results::d_word,
            &Results::d_position, &Results::d_type, &Results::d_gamma, &Results::d_beta})
        require_same_bits(fmt::format("{}, {} threads", backend.name, threads), r.*member,
                          one.*member);
    }
    backend.set_threads(2);
  }
}

#include "tests/reference/maxsim.h"

#include <fmt/format.h>

#include <algorithm>
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
#include "tests/reference/rounding.h"

using namespace maxim_tests;

namespace {

using Lengths = std::vector<int32_t>;

std::vector<int32_t> offsets_of(const Lengths& lengths) {
  std::vector<int32_t> offsets = {0};
  for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

struct Case {
  int64_t width;
  maxim::DType type;
  std::vector<int32_t> query_offsets, document_offsets;
  std::vector<float> queries, documents, d_scores;  // vectors that `type` represents

  Case(const Lengths& query_lengths, const Lengths& document_lengths, int64_t width_,
       maxim::DType type_ = maxim::DType::f32)
      : width(width_),
        type(type_),
        query_offsets(offsets_of(query_lengths)),
        document_offsets(offsets_of(document_lengths)) {
    queries = rounded(type, random_floats(query_offsets.back() * width, 1));
    documents = rounded(type, random_floats(document_offsets.back() * width, 2));
    d_scores = random_floats(query_count() * document_count(), 3);
  }
  int64_t query_count() const { return static_cast<int64_t>(query_offsets.size()) - 1; }
  int64_t document_count() const { return static_cast<int64_t>(document_offsets.size()) - 1; }
  Texts query_texts() const { return {to_double(queries), query_offsets, width}; }
  Texts document_texts() const { return {to_double(documents), document_offsets, width}; }
};

struct Results {
  std::vector<float> scores, scores_alone;  // with and without winners
  std::vector<uint16_t> winners;
  std::vector<float> d_queries, d_documents;
};

maxim::TokenVectors put(Operands& o, const std::vector<float>& vectors,
                        const std::vector<int32_t>& offsets, int64_t width,
                        maxim::DType type = maxim::DType::f32) {
  maxim::TokenVectors texts{o.put(vectors, offsets.back(), width, type), o.put(offsets), 0};
  for (size_t i = 1; i < offsets.size(); ++i)
    texts.longest = std::max<int64_t>(texts.longest, offsets[i] - offsets[i - 1]);
  return texts;
}

Results run(Backend& backend, const Case& c) {
  Operands o(*backend.device);
  const auto queries = put(o, c.queries, c.query_offsets, c.width, c.type);
  const auto documents = put(o, c.documents, c.document_offsets, c.width, c.type);
  const int64_t nq = c.query_count(), nd = c.document_count(), tq = c.query_offsets.back();
  const maxim::Tensor scores = o.output(nq, nd), alone = o.output(nq, nd);
  const maxim::Tensor winners = o.put(std::vector<uint16_t>(tq * nd, 12345), tq, nd);
  const maxim::Tensor d_scores = o.put(c.d_scores, nq, nd);
  const maxim::Tensor d_queries = o.output(tq, c.width);
  const maxim::Tensor d_documents = o.output(c.document_offsets.back(), c.width);
  backend.ops->maxsim_forward(scores, winners, queries, documents);
  backend.ops->maxsim_forward(alone, {}, queries, documents);
  backend.ops->maxsim_backward_queries(d_queries, d_scores, winners, queries, documents);
  backend.ops->maxsim_backward_documents(d_documents, d_scores, winners, queries, documents);
  return {o.get(scores), o.get(alone), o.get<uint16_t>(winners), o.get(d_queries),
          o.get(d_documents)};
}

// Demands that every winner is the lowest of the best, where rounding leaves no doubt.
void require_winners(const std::string& what, const Case& c, const std::vector<uint16_t>& got,
                     const std::vector<uint16_t>& want) {
  const int64_t nd = c.document_count();
  const auto similarity = [&](int64_t s, int64_t j, uint16_t t) {
    double sum = 0;
    for (int64_t k = 0; k < c.width; ++k)
      sum += static_cast<double>(c.queries[s * c.width + k]) *
             c.documents[(c.document_offsets[j] + t) * c.width + k];
    return sum;
  };
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    const int64_t s = static_cast<int64_t>(i) / nd, j = static_cast<int64_t>(i) % nd;
    const bool known = got[i] < c.document_offsets[j + 1] - c.document_offsets[j];
    if (!known || similarity(s, j, got[i]) < similarity(s, j, want[i]) - 1e-5)
      FAIL(fmt::format("{}: winner[{}, {}] is {}, want {}", what, s, j, got[i], want[i]));
  }
}

// How often the token that wins most often wins.
int64_t most_wins(const Case& c, const std::vector<uint16_t>& winners) {
  std::vector<int64_t> wins(c.document_offsets.back());
  const int64_t nd = c.document_count();
  for (size_t i = 0; i < winners.size(); ++i) {
    const int64_t j = static_cast<int64_t>(i) % nd;
    if (c.document_offsets[j] < c.document_offsets[j + 1])
      ++wins[c.document_offsets[j] + winners[i]];
  }
  return wins.empty() ? 0 : *std::max_element(wins.begin(), wins.end());
}

void require_right(Backend& backend, const Case& c) {
  const std::string what =
      fmt::format("{}, {} query tokens, {} documents, width {}, {}", backend.name,
                  c.query_offsets.back(), c.document_count(), c.width, maxim::name_of(c.type));
  const Results r = run(backend, c);
  const MaxSim want = maxsim(c.query_texts(), c.document_texts());
  // Products of numbers within [-1, 1]: D roundings of 2^-24 times partial sums below sqrt(D); a
  // score adds up to 300 such maxima. Products of 16-bit numbers are exact in f32.
  const double dot_bound = static_cast<double>(c.width) * 1e-7;
  int32_t longest = 1;
  for (int64_t i = 0; i < c.query_count(); ++i)
    longest = std::max(longest, c.query_offsets[i + 1] - c.query_offsets[i]);
  require_close(what + ": scores", r.scores, want.scores, dot_bound * std::sqrt(longest), 1e-6,
                c.document_count());
  require_same_bits(what + ": scores without winners", r.scores_alone, r.scores);
  require_winners(what, c, r.winners, want.winners);
  const MaxSimGradients g =
      maxsim_gradients(to_double(c.d_scores), r.winners, c.query_texts(), c.document_texts());
  require_close(what + ": d_queries", r.d_queries, g.d_queries, 2e-6, 1e-6, c.width);
  // A token sums what it won: n roundings of 2^-24 times partial sums below sqrt(n).
  require_close(what + ": d_documents", r.d_documents, g.d_documents,
                std::max(4e-6, 4e-8 * most_wins(c, r.winners)), 1e-6, c.width);
}

}  // namespace

TEST_CASE("maxsim: two queries and two documents that can be checked on paper") {
  Case c({1, 2}, {2, 1}, 2);
  c.queries = {1, 0, /**/ 0, 1, 1, 1};
  c.documents = {3, 0, 2, 5, /**/ -1, -2};
  c.d_scores = {10, 20, 30, 40};
  for (Backend& backend : backends()) {
    const Results r = run(backend, c);
    // Query 0: max(3, 2) = 3; -1. Query 1: max(0, 5) + max(3, 7) = 12; -2 - 3 = -5.
    CHECK(r.scores == std::vector<float>{3, -1, 12, -5});
    CHECK(r.winners == std::vector<uint16_t>{0, 0, 1, 0, 1, 0});
    // 10 (3, 0) + 20 (-1, -2); both tokens of query 1: 30 (2, 5) + 40 (-1, -2).
    CHECK(r.d_queries == std::vector<float>{10, -40, 20, 70, 20, 70});
    // 10 (1, 0); 30 ((0, 1) + (1, 1)); 20 (1, 0) + 40 ((0, 1) + (1, 1)).
    CHECK(r.d_documents == std::vector<float>{10, 0, 30, 60, 60, 80});
  }
}

TEST_CASE("maxsim: lengths around the tiles and panels, widths of projections and others") {
  for (Backend& backend : backends())
    for (const int64_t width : {1, 3, 16, 31, 64, 96, 100, 128, 200}) {
      const bool whole = width == 128;
      require_right(backend, Case({1, 16, 31, 32, 33, 5}, {1, 2, 5, 6, 7, 11, 12, 13}, width));
      if (!whole) continue;
      require_right(backend, Case({64, 65, 100, 128, 129, 300, 15, 17, 48},
                                  {23, 24, 25, 36, 37, 64, 180, 1}, width));
      require_right(backend, Case(Lengths(20, 32), Lengths(50, 20), width));
    }
}

TEST_CASE("maxsim: lengths around the tiles of a GPU, in every element type") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      // 16, 64 and 256 query tokens; 8, 16 and 64 document tokens, three tiles in flight.
      const auto right = [&](const Lengths& queries, const Lengths& documents, int64_t width) {
        require_right(backend, Case(queries, documents, width, type));
      };
      right({15, 1, 17, 0, 31, 2}, {7, 8, 9, 15, 16, 17, 0, 1}, 128);
      right({64}, {63, 64, 65, 128, 129, 193, 300}, 128);
      right(Lengths(9, 32), {300, 33, 64}, 128);
      right({63, 65, 128, 1}, {65}, 96);
      right({255, 2}, {5, 130}, 64);
      right({257}, {17}, 32);
      right({3, 600, 0, 20}, {40, 1}, 24);
      right(Lengths(70, 1), {33, 16}, 8);
      Lengths full(256, 1);  // windows of query tokens, and empty queries behind the last
      full.insert(full.end(), 2, 0);
      right(full, {5}, 8);
      for (const int64_t width : {1, 2, 7, 12, 120, 136}) right({5, 33}, {20, 66}, width);
    }
}

TEST_CASE("maxsim: of many equal similarities the lowest token wins, in every element type") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int64_t width : {3, 8, 16, 128}) {
        // Similarities are whole numbers within a few steps of 0, so each maximum is met often,
        // in other lanes and tiles.
        Case c({70, 33, 1, 200}, {300, 64, 1, 17, 129, 90}, width, type);
        const auto whole = [](std::vector<float>& values, uint32_t seed) {
          const auto random = random_integers(static_cast<int64_t>(values.size()), 3, seed);
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = i % 128 < 8 ? static_cast<float>(random[i] - 1) : 0.0f;
        };
        whole(c.queries, 4);
        whole(c.documents, 5);
        const MaxSim want = maxsim(c.query_texts(), c.document_texts());
        const Results r = run(backend, c);
        CHECK(to_double(r.scores) == want.scores);
        CHECK(r.winners == want.winners);
      }
}

TEST_CASE("maxsim: documents of several slabs, queries of several rounds") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      // More query tokens than a block sorts at a time (4,096), and a document with more tokens
      // than it sorts them for (256); a query lies across the rounds.
      Lengths queries(128, 32);
      queries[127] = 20;
      queries.insert(queries.end(), {30, 0, 1, 50});
      require_right(backend, Case(queries, {600, 3, 257}, 4, type));
    }
}

TEST_CASE("maxsim: the lowest of equal tokens wins") {
  for (Backend& backend : backends()) {
    Case c({40}, {30, 1, 13, 25}, 24);
    // Whole numbers, so that equal means equal: all tokens of a document are copies of one, but for
    // a worse one in front of the longest.
    for (float& x : c.queries) x = x > 0 ? 1 : 2;
    std::fill(c.documents.begin(), c.documents.end(), 1.0f);
    std::fill_n(c.documents.begin(), 24, 0.5f);
    const Results r = run(backend, c);
    REQUIRE(r.winners.size() == 40 * 4);
    for (size_t i = 0; i < r.winners.size(); ++i) {
      const uint16_t want = i % 4 == 0 ? 1 : 0;
      if (r.winners[i] != want) FAIL("winner " << i << " is " << r.winners[i]);
    }
  }
}

TEST_CASE("maxsim: a document without tokens scores 0, wins nothing and gets no gradient") {
  for (Backend& backend : backends()) {
    const Case c({3, 0, 32, 1}, {0, 4, 0, 0, 9, 0}, 32);
    require_right(backend, c);
    const Results r = run(backend, c);
    for (int64_t i = 0; i < 4; ++i)
      for (const int64_t j : {0, 2, 3, 5}) CHECK(r.scores[i * 6 + j] == 0);
    for (int64_t s = 0; s < 36; ++s)
      for (const int64_t j : {0, 2, 3, 5}) CHECK(r.winners[s * 6 + j] == 65535);
    for (int64_t j = 0; j < 6; ++j) CHECK(r.scores[6 + j] == 0);  // the query without tokens
  }
}

TEST_CASE("maxsim: all similarities negative: the best of them counts, not 0") {
  for (Backend& backend : backends()) {
    Case c({5, 33}, {1, 7, 13}, 16);
    for (float& x : c.queries) x = std::abs(x) + 0.1f;
    for (float& x : c.documents) x = -std::abs(x) - 0.1f;
    require_right(backend, c);
    for (const float score : run(backend, c).scores) CHECK(score < 0);
  }
}

TEST_CASE("maxsim: no queries, no documents") {
  for (Backend& backend : backends()) {
    const Results none = run(backend, Case({}, {3, 4}, 16));
    CHECK(none.scores.empty());
    CHECK(none.d_documents == std::vector<float>(7 * 16, 0.0f));
    CHECK(run(backend, Case({3, 4}, {}, 16)).d_queries == std::vector<float>(7 * 16, 0.0f));
    CHECK(run(backend, Case({}, {}, 16)).scores.empty());
  }
}

TEST_CASE("maxsim: a similarity that is not a number spoils its score, and only its score") {
  for (Backend& backend : backends())
    for (const int64_t token : {0, 5, 19}) {
      // The types in turn.
      const maxim::DType type = backend.types[token % backend.types.size()];
      Case c({32, 20}, {20, 20, 20}, 16, type);
      // A GPU's two kernels agree on which of several it is: the lowest.
      const int64_t step = backend.name == "cuda" ? 3 : 20;
      for (int64_t t = token; t < 20; t += step)
        c.documents[(20 + t) * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
      const Results r = run(backend, c);
      for (int64_t i = 0; i < 2; ++i)
        for (int64_t j = 0; j < 3; ++j) CHECK(std::isnan(r.scores[i * 3 + j]) == (j == 1));
      for (int64_t s = 0; s < 52; ++s) CHECK(r.winners[s * 3 + 1] == token);
    }
}

TEST_CASE("maxsim: gradients are the central differences of the scores") {
  const Case c({3, 1}, {4, 0, 2}, 8);  // random similarities: no ties within the step
  const auto d_scores = to_double(c.d_scores);
  const Texts queries = c.query_texts(), documents = c.document_texts();
  const auto d_queries = central_differences(
      [&](const std::vector<double>& x) {
        return weighted_sum(d_scores, maxsim({x, queries.offsets, c.width}, documents).scores);
      },
      queries.vectors);
  const auto d_documents = central_differences(
      [&](const std::vector<double>& x) {
        return weighted_sum(d_scores, maxsim(queries, {x, documents.offsets, c.width}).scores);
      },
      documents.vectors);
  for (Backend& backend : backends()) {
    const Results r = run(backend, c);
    require_close("d_queries", r.d_queries, d_queries, 1e-6, 0, c.width);
    require_close("d_documents", r.d_documents, d_documents, 1e-6, 0, c.width);
  }
}

TEST_CASE("maxsim: gradients are summed in ascending order, bit for bit") {
  // Every query token wins the same token of the one document, so that its gradient is a sum over
  // hundreds of query tokens, in warps and rounds of 4,096.
  for (Backend& backend : backends())
    for (const int64_t width : {4, 3}) {
      Case c(Lengths(150, 30), {5}, width);
      std::fill(c.documents.begin(), c.documents.end(), 0.0f);
      const Results r = run(backend, c);
      std::vector<float> want(5 * width);
      for (int64_t s = 0; s < c.query_offsets.back(); ++s)
        for (int64_t k = 0; k < width; ++k)
          want[k] = std::fma(c.d_scores[s / 30], c.queries[s * width + k], want[k]);
      require_same_bits(backend.name, r.d_documents, want);
    }
}

TEST_CASE("maxsim: the same bits on any number of threads, in any order") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      Lengths queries, documents;
      for (int i = 0; i < 30; ++i) queries.push_back(i % 7 == 0 ? 0 : 10 + i);
      for (int j = 0; j < (type == maxim::DType::f32 ? 90 : 30); ++j)
        documents.push_back(j * 7 % 40);
      const Case c(queries, documents, 64, type);
      backend.set_threads(1);
      const Results one = run(backend, c);
      for (const int threads : {2, 3, 5}) {
        backend.set_threads(threads);
        const Results r = run(backend, c);
        require_same_bits("scores", r.scores, one.scores);
        CHECK(r.winners == one.winners);
        require_same_bits("d_queries", r.d_queries, one.d_queries);
        require_same_bits("d_documents", r.d_documents, one.d_documents);
      }
      backend.set_threads(2);
    }
}

TEST_CASE("maxsim: queries of several tiles, the first document without tokens") {
  // A block of the emulated GPU has all three documents. No barrier of a document's tiles lies
  // between the sums of the last one and the maxima of the first one in the next tile of queries.
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types)
      for (const int order : {1, 2, 3, 5}) {
        backend.set_threads(order);
        require_right(backend, Case(Lengths(4, 500), {0, 5, 9}, 8, type));
      }
  for (Backend& backend : backends()) backend.set_threads(2);
}

TEST_CASE("maxsim: a document's score does not depend on its neighbours") {
  for (Backend& backend : backends())
    for (const maxim::DType type : backend.types) {
      const Case all({32, 7}, {20, 3, 64, 1}, 128, type);
      Case last({32, 7}, {64}, 128, type);
      last.queries = all.queries;
      last.documents.assign(all.documents.begin() + 23 * 128, all.documents.begin() + 87 * 128);
      const auto a = run(backend, all).scores, b = run(backend, last).scores;
      require_same_bits("scores of document 2", {a[2], a[6]}, b);
    }
}

TEST_CASE("maxsim: shapes that do not fit are refused") {
  for (Backend& backend : backends()) {
    Operands o(*backend.device);
    const auto queries = put(o, std::vector<float>(32), {0, 2}, 16);
    auto documents = put(o, std::vector<float>(24), {0, 3}, 8);
    require_message<maxim::Error>(
        [&] { backend.ops->maxsim_forward(o.output(1, 1), {}, queries, documents); },
        {"queries of width 16, documents of width 8"});
    documents = put(o, std::vector<float>(48), {0, 3}, 16);
    documents.longest = 65535;
    require_message<maxim::Error>(
        [&] { backend.ops->maxsim_forward(o.output(1, 1), {}, queries, documents); },
        {"65535 tokens"});
  }
}

TEST_CASE("maxsim: no memory after the first call, however many and long the texts") {
  for (Backend& backend : make_backends()) {
    Operands o(*backend.device);
    const auto score = [&](const Case& c) {
      const auto queries = put(o, c.queries, c.query_offsets, c.width);
      const auto documents = put(o, c.documents, c.document_offsets, c.width);
      const maxim::Tensor scores = o.output(c.query_count(), c.document_count());
      const int64_t before = backend.device->allocations();
      backend.ops->maxsim_forward(scores, {}, queries, documents);
      return backend.device->allocations() - before;
    };
    score(Case({1}, {1}, 32));
    CHECK(score(Case({300, 1, 512}, Lengths(20, 100), 32)) == 0);
  }
}

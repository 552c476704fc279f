// Exact retrieval: the best lists by hand, and against a double loop over all tokens.
#include "trainer/retrieval.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/catch.h"
#include "tests/reference/rounding.h"
#include "tests/trainer/tiny_model.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

std::vector<int64_t> documents_of(const std::vector<Hit>& hits) {
  std::vector<int64_t> documents;
  for (const Hit& hit : hits) documents.push_back(hit.document);
  return documents;
}

bool same(const std::vector<std::vector<Hit>>& a, const std::vector<std::vector<Hit>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t q = 0; q < a.size(); ++q)
    if (!std::equal(a[q].begin(), a[q].end(), b[q].begin(), b[q].end(),
                    [](Hit x, Hit y) { return x.document == y.document && x.score == y.score; }))
      return false;
  return true;
}

// MaxSim of two texts' vectors, in double.
double maxsim(const EncodedTexts& queries, int64_t q, const EncodedTexts& documents, int64_t d) {
  double sum = 0;
  for (int64_t s = queries.offsets[q]; s < queries.offsets[q + 1]; ++s) {
    double best = -std::numeric_limits<double>::infinity();
    for (int64_t t = documents.offsets[d]; t < documents.offsets[d + 1]; ++t) {
      double dot = 0;
      for (int64_t k = 0; k < queries.dimension; ++k)
        dot += double{queries.vectors[s * queries.dimension + k]} *
               documents.vectors[t * queries.dimension + k];
      best = std::max(best, dot);
    }
    sum += best;
  }
  return sum;
}

// The tiny model in each type that its device computes in.
void in_each_type(const std::function<void(ModelSession&, DType)>& work) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    ModelOptions options = tiny_options();
    if (type != DType::f32 && !ModelSession(options, false).on_gpu()) continue;
    options.compute_type = type;
    ModelSession session(options, false);
    INFO(name_of(type));
    work(session, type);
  }
}

}  // namespace

TEST_CASE("TopHits keeps the best of all tiles, equal scores by document number") {
  TopHits hits(2, 3);
  const std::vector<float> first = {1, 5, 2,  //
                                    7, 7, 7};
  const std::vector<float> second = {5, 5,  //
                                     7, 8};
  hits.add(first.data(), {6, 4, 9});
  hits.add(second.data(), {1, 2});
  CHECK(documents_of(hits.sorted()[0]) == std::vector<int64_t>{1, 2, 4});
  CHECK(documents_of(hits.sorted()[1]) == std::vector<int64_t>{2, 1, 4});
  CHECK(hits.sorted()[1][0].score == 8);
}

TEST_CASE("TopHits: fewer documents than k, none at all, negative and infinite scores") {
  TopHits hits(1, 10);
  CHECK(hits.sorted()[0].empty());
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {-3, -infinity, -1};
  hits.add(scores.data(), {0, 1, 2});
  CHECK(documents_of(hits.sorted()[0]) == std::vector<int64_t>{2, 0, 1});
  CHECK_THROWS_AS(TopHits(1, 0), Error);
}

TEST_CASE("TopHits: a score that is not a number is an error that names query and document") {
  TopHits hits(2, 1);
  const std::vector<float> scores = {1, 2, 3, std::nanf("")};
  CHECK_THROWS_WITH(hits.add(scores.data(), {5, 8}),
                    Catch::Contains("query 1") && Catch::Contains("document 8"));
}

TEST_CASE("retrieval gives the scores and the order of a plain double loop") {
  in_each_type([](ModelSession& session, DType type) {
    SoloCommunicator solo;
    const std::vector<std::string> documents = ragged_texts(40), queries = ragged_texts(5);
    const EncodeSettings settings{.batch_size = 7, .batch_tokens = 150};
    const auto hits = retrieve(session, solo, queries, documents, 40, settings);
    const EncodedTexts q = encode_texts(session, solo, queries, true, {});
    const EncodedTexts d = encode_texts(session, solo, documents, false, {});
    REQUIRE(hits.size() == queries.size());
    // 16 query tokens, each the dot product of unit vectors in fp32 (64 products) from vectors that
    // two batch shapes may make differ in the last bits, of 16 where it has those.
    const double bound = 16 * (type == DType::f32 ? 64 * 6e-8 : 4 * roundoff(type));
    for (size_t i = 0; i < hits.size(); ++i) {
      REQUIRE(hits[i].size() == documents.size());
      for (size_t rank = 0; rank < hits[i].size(); ++rank) {
        const double exact = maxsim(q, i, d, hits[i][rank].document);
        INFO("query " << i << " document " << hits[i][rank].document << ": " << hits[i][rank].score
                      << ", double loop " << exact << ", bound " << bound);
        CHECK(std::abs(hits[i][rank].score - exact) < bound);
        if (rank > 0) CHECK(hits[i][rank - 1].score >= hits[i][rank].score);
      }
    }
  });
}

TEST_CASE("a kept index answers as retrieval does, also for more documents than there are") {
  in_each_type([](ModelSession& session, DType) {
    SoloCommunicator solo;
    const std::vector<std::string> documents = ragged_texts(23), queries = ragged_texts(4);
    const EncodeSettings settings{.batch_size = 5};
    DocumentIndex index(session, solo, documents, settings);
    CHECK(index.tokens() == encode_texts(session, solo, documents, false, settings).tokens());
    for (int64_t k : {1, 5, 23, 1000}) {
      const auto hits = retrieve(session, solo, queries, documents, k, settings);
      CHECK(hits[0].size() == std::min<size_t>(k, documents.size()));
      CHECK(same(index.search(queries, k), hits));
    }
  });
}

TEST_CASE("equal documents are ordered by number") {
  const auto session = tiny_model();
  SoloCommunicator solo;
  const std::vector<std::string> documents(9, "war and peace");
  const auto hits = retrieve(*session, solo, {"peace"}, documents, 5, {});
  CHECK(documents_of(hits[0]) == std::vector<int64_t>{0, 1, 2, 3, 4});
}

TEST_CASE("a document is not scored 0 because another one is longer") {
  // One query token against document 0 at -1 and document 1 at -0.6, which is padded to two tokens
  // in PyLate's evaluator: the zero vector there wins the max, and its score is 0, not -0.6.
  HostDevice device;
  const std::unique_ptr<Ops> ops = make_cpu_ops(device);
  std::vector<float> query = {1, 0}, vectors = {-1, 0, -1, 0, -0.6f, 0.8f}, scores(2);
  std::vector<int32_t> query_offsets = {0, 1}, offsets = {0, 2, 3};
  ops->maxsim_forward(
      Tensor::of(scores, 1, 2), Tensor(),
      {.vectors = Tensor::of(query, 1, 2), .offsets = Tensor::of(query_offsets), .longest = 1},
      {.vectors = Tensor::of(vectors, 3, 2), .offsets = Tensor::of(offsets), .longest = 2});
  CHECK(scores[0] == -1);
  CHECK(scores[1] == -0.6f);
}

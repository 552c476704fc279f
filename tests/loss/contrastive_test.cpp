// ContrastiveLoss on one rank. tests/mpi/contrastive_test.cpp has the rest of the world sizes.
#include "loss/contrastive.h"

#include <cmath>

#include "comm/solo_communicator.h"
#include "tests/catch.h"
#include "tests/loss/run_contrastive.h"
#include "tests/reference/compare.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

struct Fixture {
  HostDevice device;
  std::unique_ptr<Ops> ops = make_cpu_ops(device);
  SoloCommunicator solo;

  ContrastiveResult run(const ContrastiveProblem& problem, bool gather = true) {
    return run_contrastive(
        *ops, solo, problem.queries, problem.documents,
        {problem.temperature, problem.scale, gather, problem.documents_per_query});
  }
};

// Ragged lengths: 1, longer than a vector register, and a document without tokens.
ContrastiveProblem problem_of(int64_t documents_per_query, double temperature) {
  const std::vector<int32_t> query_lengths = {3, 1, 17, 5, 9};
  std::vector<int32_t> document_lengths;
  for (int64_t j = 0; j < 5 * documents_per_query; ++j)
    document_lengths.push_back(static_cast<int32_t>(j * 7 % 23 + 1));
  document_lengths.back() = 0;
  ContrastiveProblem problem;
  problem.queries = random_texts(query_lengths, 32, 1);
  problem.documents = random_texts(document_lengths, 32, 2);
  problem.documents_per_query = documents_per_query;
  problem.groups = {0, 5};
  problem.temperature = temperature;
  problem.scale = 0.2;
  return problem;
}

}  // namespace

TEST_CASE_METHOD(Fixture, "contrastive: two queries on paper") {
  // q0 = d0 = (1, 0), q1 = d1 = (0, 1): scores are the unit matrix, p = e / (e + 1) the share of
  // the positive, the loss of each query -ln p, d_score = p - 1 for the positive, 1 - p else.
  ContrastiveProblem problem;
  problem.queries = {{1, 0, 0, 1}, {0, 1, 2}, 2};
  problem.documents = problem.queries;
  problem.groups = {0, 2};
  problem.scale = 0.5;
  const ContrastiveResult got = run(problem);
  const double p = std::exp(1) / (std::exp(1) + 1), h = (1 - p) / 2;
  CHECK(got.loss == Approx(-std::log(p)).epsilon(1e-6));
  require_close("d_queries", got.d_queries, {-h, h, h, -h}, 1e-7);
  require_close("d_documents", got.d_documents, {-h, h, h, -h}, 1e-7);
}

TEST_CASE("contrastive: the reference against central differences") {
  ContrastiveProblem problem = problem_of(2, 0.5);
  const ContrastiveAnswer answer = contrastive_answer(problem);
  // A single float moves by h = 2^-10, the differences are of order h^2.
  const auto slope = [&](std::vector<float>& vectors, size_t i) {
    const float before = vectors[i], h = 1.0f / 8192;
    vectors[i] = before + h;
    const double above = contrastive_answer(problem).loss, above_at = vectors[i];
    vectors[i] = before - h;
    const double below = contrastive_answer(problem).loss, below_at = vectors[i];
    vectors[i] = before;
    return (above - below) / (above_at - below_at);
  };
  for (size_t i = 0; i < 40; ++i) {
    const size_t q = i * 27 % problem.queries.vectors.size();
    const size_t d = i * 83 % problem.documents.vectors.size();
    CHECK(slope(problem.queries.vectors, q) == Approx(answer.d_queries[q]).margin(1e-5));
    CHECK(slope(problem.documents.vectors, d) == Approx(answer.d_documents[d]).margin(1e-5));
  }
}

TEST_CASE_METHOD(Fixture, "contrastive: no, one and three negatives, also at a low temperature") {
  for (const int64_t documents_per_query : {1, 2, 4}) {
    for (const double temperature : {1.0, 0.05, 0.01}) {
      INFO(documents_per_query << " documents a query, temperature " << temperature);
      const ContrastiveProblem problem = problem_of(documents_per_query, temperature);
      const ContrastiveAnswer want = contrastive_answer(problem);
      const ContrastiveResult got = run(problem);
      CHECK(got.loss == Approx(want.loss).epsilon(contrastive_tolerance(problem)));
      require_answer(got, want, problem);
    }
  }
}

TEST_CASE_METHOD(Fixture, "contrastive: not averaged is the sum") {
  ContrastiveProblem problem = problem_of(2, 1);
  const ContrastiveResult mean = run(problem);
  problem.scale = 1;
  const ContrastiveAnswer want = contrastive_answer(problem);
  const ContrastiveResult sum = run(problem);
  CHECK(sum.loss == Approx(want.loss).epsilon(1e-5));
  CHECK(sum.loss == Approx(5 * mean.loss).epsilon(1e-6));
  require_answer(sum, want, problem);
}

TEST_CASE_METHOD(Fixture, "contrastive: scores far apart stay finite") {
  // 32 equal tokens and temperature 0.01: logits from -3200 to 3200.
  ContrastiveProblem problem;
  problem.queries.width = problem.documents.width = 2;
  for (int t = 0; t < 64; ++t) {
    problem.queries.vectors.insert(problem.queries.vectors.end(), {t < 32 ? 1.0f : -1.0f, 0});
    problem.documents.vectors.insert(problem.documents.vectors.end(), {t < 32 ? -1.0f : 1.0f, 0});
  }
  problem.queries.offsets = problem.documents.offsets = {0, 32, 64};
  problem.groups = {0, 2};
  problem.temperature = 0.01;
  problem.scale = 0.5;
  const ContrastiveResult got = run(problem);
  CHECK(got.loss == Approx(6400).epsilon(1e-5));
  for (const float d : got.d_queries) CHECK(std::isfinite(d));
  for (const float d : got.d_documents) CHECK(std::isfinite(d));
}

TEST_CASE_METHOD(Fixture, "contrastive: alone, gathering changes nothing and sends nothing") {
  const ContrastiveProblem problem = problem_of(2, 1);
  const ContrastiveResult with = run(problem, true), without = run(problem, false);
  CHECK(solo.calls() == 0);
  CHECK(with.loss == without.loss);
  require_same_bits("d_queries", with.d_queries, without.d_queries);
  require_same_bits("d_documents", with.d_documents, without.d_documents);
}

TEST_CASE_METHOD(Fixture, "contrastive: the loss is added, the arena is as large as it says") {
  const ContrastiveProblem problem = problem_of(2, 1);
  const ContrastiveResult plain = run(problem);
  const ContrastiveResult added = run_contrastive(*ops, solo, problem.queries, problem.documents,
                                                  {1, problem.scale, true, 2, 3.0f});
  CHECK(added.loss == Approx(3 + plain.loss).epsilon(1e-6));
  CHECK(plain.arena_peak == plain.arena_bound);
}

TEST_CASE_METHOD(Fixture, "contrastive: no rows") {
  ContrastiveProblem problem;
  problem.groups = {0, 0};
  const ContrastiveResult got = run(problem);
  CHECK(got.loss == 0);
  CHECK(got.d_queries.empty());
}

TEST_CASE_METHOD(Fixture, "contrastive: what does not fit is refused") {
  CHECK_THROWS_AS(ContrastiveLoss(*ops, solo, {.temperature = 0}), Error);
  CHECK_THROWS_AS(ContrastiveLoss(*ops, solo, {.documents_per_query = 0}), Error);
  const ContrastiveProblem problem = problem_of(2, 1);
  CHECK_THROWS_AS(
      run_contrastive(*ops, solo, problem.queries, problem.documents, {.documents_per_query = 3}),
      Error);
  // Offsets that end before or after the vectors do.
  ContrastiveLoss contrastive(*ops, solo, {});
  Arena arena(device, 1 << 16, "arena of a test");
  std::vector<float> vectors(3 * 4), loss(1);
  const Tensor three = Tensor::of(vectors, 3, 4);
  const auto run_with = [&](const std::vector<int32_t>& queries,
                            const std::vector<int32_t>& documents) {
    contrastive.run({three, three, queries, documents}, 1, Tensor::of(loss), three, three, arena);
  };
  CHECK_THROWS_AS(run_with({0, 2}, {0, 3}), Error);
  CHECK_THROWS_AS(run_with({0, 3}, {0, 4}), Error);
  CHECK_THROWS_AS(run_with({0, 3}, {0, 1, 3}), Error);
}

// ContrastiveLoss on one rank. tests/mpi/contrastive_test.cpp has the rest of the world sizes.
#include "loss/contrastive.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "comm/solo_communicator.h"
#include "tests/catch.h"
#include "tests/loss/run_contrastive.h"
#include "tests/model/counting_ops.h"
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

// Rank 0 of two; the other has the same documents, and no queries. What is to run beside runs as
// late as it may: in join().
class LateCommunicator final : public Communicator {
 public:
  explicit LateCommunicator(CountingOps& ops) : ops_(ops) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_gather(const Tensor& all, const Tensor& mine,
                  const std::vector<int64_t>& parts) override {
    check_parts(all, mine, parts);
    for (const int64_t begin : {int64_t{0}, parts[0]})
      std::memcpy(all.slice(begin, begin + parts[0]).data(), mine.data(), mine.bytes());
  }
  void reduce_scatter(const Tensor& mine, const Tensor& all,
                      const std::vector<int64_t>& parts) override {
    check_parts(all, mine, parts);
    std::memcpy(mine.data(), all.data(), mine.bytes());
  }
  void beside(std::function<void(Communicator&)> work) override {
    calls_before.push_back(ops_.calls());
    work_.push_back(std::move(work));
  }
  void join() override {
    calls_before.push_back(ops_.calls());
    for (const auto& work : std::exchange(work_, {})) work(*this);
  }
  void all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                       const std::vector<int32_t>& mine) override {
    all = mine;
    all.insert(all.end(), mine.begin(), mine.end());
    parts.assign(2, static_cast<int64_t>(mine.size()));
  }
  void all_reduce(const Tensor&, Reduction) override { FAIL(); }
  void broadcast(const Tensor&, int) override { FAIL(); }
  void barrier() override { FAIL(); }
  std::vector<int64_t> all_gather_host(int64_t value) override { return {value, value}; }
  std::vector<std::string> all_gather_text(const std::string& text) override {
    return {text, text};
  }
  std::vector<double> sum_host(const std::vector<double>& values) override { return values; }

  std::vector<int64_t> calls_before;  // of operations, before each beside() and join()

 private:
  CountingOps& ops_;
  std::vector<std::function<void(Communicator&)>> work_;
};

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

// The documents travel while the device makes the queries' vectors, and their gradients while it
// makes the queries'.
TEST_CASE_METHOD(Fixture, "contrastive: work on queries is beside the gather and the scatter") {
  CountingOps counting(make_cpu_ops(device));
  LateCommunicator late(counting);
  ContrastiveLoss contrastive(counting, late, {});
  Arena arena(device, 1 << 16, "arena of a test");
  std::vector<float> queries(4, std::nanf("")), documents = {1, 0, 0, 1}, loss(1), d_q(4), d_d(4);
  const std::vector<int32_t> offsets = {0, 1, 2};
  const ContrastiveBatch batch = {Tensor::of(queries, 2, 2), Tensor::of(documents, 2, 2), offsets,
                                  offsets};
  contrastive.gather(batch, arena);
  CHECK(late.calls_before == std::vector<int64_t>{0});
  queries = documents;
  contrastive.run(batch, 0.5f, Tensor::of(loss), Tensor::of(d_q, 2, 2), Tensor::of(d_d, 2, 2),
                  arena);
  // Scores and loss after the gather; the documents' gradients; and the queries' before the join.
  CHECK(late.calls_before == std::vector<int64_t>{0, 0, 3, 4});
  CHECK(counting.of("maxsim_backward_queries").calls == 1);
  // Each query has its document twice among four candidates.
  const double p = std::exp(1) / (2 * std::exp(1) + 2);
  CHECK(loss[0] == Approx(-std::log(p)).epsilon(1e-6));
  CHECK(d_d[0] == Approx((p - 1) / 2).epsilon(1e-6));
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
    const ContrastiveBatch batch = {three, three, queries, documents};
    contrastive.gather(batch, arena);
    contrastive.run(batch, 1, Tensor::of(loss), three, three, arena);
  };
  CHECK_THROWS_AS(run_with({0, 2}, {0, 3}), Error);
  CHECK_THROWS_AS(run_with({0, 3}, {0, 4}), Error);
  CHECK_THROWS_AS(run_with({0, 3}, {0, 1, 3}), Error);
}

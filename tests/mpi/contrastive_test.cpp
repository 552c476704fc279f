// The contrastive loss and its gradients do not depend on the number of ranks. Every rank makes the
// whole global batch, runs its own rows, and holds its part against the double loops over all rows.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "comm/solo_communicator.h"
#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tests/catch.h"
#include "tests/loss/run_contrastive.h"
#include "tests/mpi/places.h"
#include "tests/mpi/world.h"
#include "tests/reference/compare.h"
#include "tests/reference/golden_texts.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

// Runs this rank's rows [groups[rank], groups[rank+1]) of the global batch.
struct Fixture {
  Communicator& communicator = *world().communicator;
  const int rank = world().rank, size = world().size;

  ContrastiveResult run(const Place& place, const ContrastiveProblem& problem,
                        const std::vector<int64_t>& rows, bool gather) {
    const int64_t begin = rows[rank], end = rows[rank + 1], n = problem.documents_per_query;
    return run_contrastive(place.ops(), *place.communicator, part_of(problem.queries, begin, end),
                           part_of(problem.documents, begin * n, end * n),
                           {problem.temperature, problem.scale, gather, n});
  }

  // The sum of the ranks' losses, and this rank's part of the answer's gradients.
  void check(const ContrastiveResult& got, double loss, const ContrastiveProblem& problem,
             const std::vector<int64_t>& rows) {
    ContrastiveAnswer want = contrastive_answer(problem);
    CHECK(loss == Approx(want.loss).epsilon(contrastive_tolerance(problem)));
    CHECK(got.arena_peak <= got.arena_bound);
    const auto cut = [&](std::vector<double>& values, const Texts& texts, int64_t n) {
      const int64_t width = texts.width;
      values = std::vector<double>(values.begin() + texts.offsets[rows[rank] * n] * width,
                                   values.begin() + texts.offsets[rows[rank + 1] * n] * width);
    };
    cut(want.d_queries, problem.queries, 1);
    cut(want.d_documents, problem.documents, problem.documents_per_query);
    require_answer(got, want, problem);
  }
};

// First rows of the ranks: as even as can be; all on the last rank; none on odd ranks.
std::vector<std::vector<int64_t>> row_splits(int64_t rows, int size) {
  std::vector<int64_t> even(size + 1), last(size + 1, 0), odd(size + 1, 0);
  for (int r = 0; r <= size; ++r) even[r] = rows * r / size;
  last[size] = rows;
  const int holders = (size + 1) / 2;
  for (int r = 0; r <= size; ++r) odd[r] = rows * ((r + 1) / 2) / holders;
  return {even, last, odd};
}

// 7 rows. Lengths grow along the batch, so that the ranks' token counts are very different: the
// last rank has about a hundred times the first's.
ContrastiveProblem problem_of(int64_t documents_per_query, double temperature) {
  std::vector<int32_t> query_lengths, document_lengths;
  for (int32_t i = 0; i < 7; ++i) {
    query_lengths.push_back(1 + i * i / 2);
    for (int32_t k = 0; k < documents_per_query; ++k)
      document_lengths.push_back(i == 0 ? k % 2 : 1 + i * i * i / (k + 1));
  }
  ContrastiveProblem problem;
  problem.queries = random_texts(query_lengths, 64, 3);
  problem.documents = random_texts(document_lengths, 64, 4);
  problem.documents_per_query = documents_per_query;
  problem.temperature = temperature;
  problem.scale = 1.0 / 7;
  return problem;
}

}  // namespace

TEST_CASE_METHOD(Fixture, "mpi contrastive: the answer of one process on any split of the rows") {
  // All runs first: a failed comparison on one rank must not leave the others in a collective.
  struct Case {
    ContrastiveProblem problem;
    std::vector<int64_t> rows;
    std::string place;
    ContrastiveResult got;
    double loss;
  };
  std::vector<Case> cases;
  for (const Place& place : places())
    for (const bool gather : {true, false})
      for (const int64_t documents_per_query : {1, 2, 4})
        for (const double temperature : {1.0, 0.02})
          for (const std::vector<int64_t>& rows : row_splits(7, size)) {
            Case c{problem_of(documents_per_query, temperature), rows, place.name, {}, 0};
            // Without gathering each rank's documents are the candidates of its own queries, and
            // the loss is the mean over all queries of these local losses.
            c.problem.groups = gather ? std::vector<int64_t>{0, 7} : rows;
            c.got = run(place, c.problem, rows, gather);
            c.loss = communicator.sum_host({c.got.loss})[0];
            cases.push_back(c);
          }
  for (const Case& c : cases) {
    INFO(c.place << ", " << c.problem.groups.size() << " groups, " << c.problem.documents_per_query
                 << " documents a query, temperature " << c.problem.temperature
                 << ", this rank has rows " << c.rows[rank] << " to " << c.rows[rank + 1]);
    check(c.got, c.loss, c.problem, c.rows);
  }
}

TEST_CASE_METHOD(Fixture, "mpi contrastive: the same bits when repeated") {
  ContrastiveProblem problem = problem_of(2, 0.05);
  const std::vector<int64_t> rows = row_splits(7, size)[0];
  for (const Place& place : places()) {
    const ContrastiveResult first = run(place, problem, rows, true),
                            second = run(place, problem, rows, true);
    CHECK(first.loss == second.loss);
    require_same_bits("d_queries", first.d_queries, second.d_queries);
    require_same_bits("d_documents", first.d_documents, second.d_documents);
  }
}

TEST_CASE_METHOD(Fixture, "mpi contrastive: every token of every rank counts exactly once") {
  // Document token t of the global batch is the t-th unit vector, and every query has one token for
  // each of them. So the score of document j is its length, for every query: a token that is
  // missing, doubled or put into another document shows in it. Rank r has r % 3 rows, rank 0 one.
  std::vector<int64_t> rows = {0};
  for (int r = 0; r < size; ++r) rows.push_back(rows.back() + (r == 0 ? 1 : r % 3));
  const int64_t count = rows.back();
  ContrastiveProblem problem;
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(static_cast<int32_t>(i * 5 % 4 + 1));
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  problem.documents = random_texts(lengths, tokens, 1);
  problem.queries =
      random_texts(std::vector<int32_t>(count, static_cast<int32_t>(tokens)), tokens, 1);
  for (int64_t i = 0; i < tokens * tokens; ++i)
    problem.documents.vectors[i] = i / tokens == i % tokens ? 1 : 0;
  for (size_t i = 0; i < problem.queries.vectors.size(); ++i)
    problem.queries.vectors[i] = problem.documents.vectors[i % (tokens * tokens)];
  problem.scale = 1;
  double sum = 0, expected = 0;
  for (const int32_t length : lengths) sum += std::exp(length);
  for (const int32_t length : lengths) expected += std::log(sum) - length;
  std::vector<ContrastiveResult> results;
  std::vector<double> losses;
  for (const Place& place : places()) {
    results.push_back(run(place, problem, rows, true));
    losses.push_back(communicator.sum_host({results.back().loss})[0]);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    INFO(places()[i].name);
    CHECK(losses[i] == Approx(expected).margin(1e-5));
    // Of d_document[t], the t-th component is the sum over queries i of d score(i, j): their
    // softmax share of j, minus one for the query whose positive j is.
    const Texts& documents = problem.documents;
    for (int64_t j = rows[rank]; j < rows[rank + 1]; ++j)
      for (int64_t t = documents.offsets[j]; t < documents.offsets[j + 1]; ++t) {
        const int64_t own = t - documents.offsets[rows[rank]];
        CHECK(results[i].d_documents[own * tokens + t] ==
              Approx(count * std::exp(lengths[j]) / sum - 1).margin(1e-5));
      }
    CHECK(results[i].arena_peak <= results[i].arena_bound);
  }
}

// PyLate multiplies each rank's loss by the world size W when it gathers, and so its gradient. Ours
// sum to the mean over the global batch: a rank's part is PyLate's / W (the factor) / W (its share
// of the rows). golden/distributed.json has PyLate's on two ranks for the rows of exclude.*.
TEST_CASE_METHOD(Fixture, "mpi contrastive: golden rows, and PyLate's loss is W times too large") {
  const SafetensorsFile file("tests/golden/exclude.safetensors");
  ContrastiveProblem problem;
  problem.queries = golden_texts(file, "emb.", {"query"});
  problem.documents = golden_texts(file, "emb.", {"positive", "negative"});
  problem.documents_per_query = 2;
  problem.scale = 0.25;
  const std::vector<int64_t> rows = row_splits(4, size)[0];
  const double golden =
      read_json("tests/golden/exclude.json")["losses"]["contrastive.t1"].get<double>();
  for (const Place& place : places()) {
    const ContrastiveResult got = run(place, problem, rows, true);
    CHECK(communicator.sum_host({got.loss})[0] == Approx(golden).epsilon(1e-5));
    if (size != 2) continue;
    const double pylate =
        read_json(
            "tests/golden/distributed.json")["worlds"]["2"]["contrastive"]["rank_losses"][rank]
            .get<double>();
    CHECK(got.loss == Approx(pylate / 2 / 2).epsilon(1e-5));
  }
}

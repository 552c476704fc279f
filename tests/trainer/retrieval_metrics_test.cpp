// Retrieval metrics against cases worked out by hand.
#include "trainer/retrieval_metrics.h"

#include <cmath>
#include <numeric>

#include "runtime/error.h"
#include "tests/catch.h"

using namespace maxim;

namespace {

// One query's metrics.
Metrics of_query(const std::vector<int64_t>& ranked, const std::vector<int64_t>& relevant) {
  std::unordered_map<int64_t, int> map;
  for (int64_t document : relevant) map[document] = 1;
  return retrieval_metrics({ranked}, {map});
}

void check(const Metrics& metrics, const Metrics& expected) {
  for (const auto& [name, value] : expected) {
    INFO(name << " is " << metric(metrics, name) << ", by hand " << value);
    CHECK(std::abs(metric(metrics, name) - value) < 1e-12);
  }
}

}  // namespace

TEST_CASE("metrics of one query with two of three relevant documents found") {
  // Hits at ranks 2 and 4, a third relevant document is not in the list.
  check(of_query({7, 1, 8, 2, 9}, {1, 2, 3}),
        {{"ndcg@10", (1 / std::log2(3) + 1 / std::log2(5)) / (1 + 1 / std::log2(3) + 0.5)},
         {"mrr@10", 0.5},
         {"map@100", (1.0 / 2 + 2.0 / 4) / 3},
         {"accuracy@1", 0},
         {"accuracy@3", 1},
         {"accuracy@5", 1},
         {"precision@1", 0},
         {"precision@3", 1.0 / 3},
         {"precision@5", 2.0 / 5},
         {"precision@10", 2.0 / 10},
         {"precision@100", 2.0 / 100},
         {"recall@1", 0},
         {"recall@3", 1.0 / 3},
         {"recall@5", 2.0 / 3},
         {"recall@10", 2.0 / 3},
         {"recall@100", 2.0 / 3}});
}

TEST_CASE("a perfect list scores 1 where more is relevant than fits") {
  std::vector<int64_t> ranked(200), relevant(150);
  std::iota(ranked.begin(), ranked.end(), 0);
  std::iota(relevant.begin(), relevant.end(), 0);
  check(of_query(ranked, relevant), {{"ndcg@10", 1},
                                     {"mrr@10", 1},
                                     {"map@100", 1},
                                     {"precision@100", 1},
                                     {"recall@10", 10.0 / 150},
                                     {"recall@100", 100.0 / 150}});
}

TEST_CASE("nothing relevant found, and lists that end early") {
  for (const Metrics& metrics : {of_query({5, 6}, {1}), of_query({}, {1})})
    for (const auto& [name, value] : metrics) {
      INFO(name);
      CHECK(value == 0);
    }
}

TEST_CASE("ranks beyond the cutoff do not count") {
  std::vector<int64_t> ranked(101);
  std::iota(ranked.begin(), ranked.end(), 0);
  check(of_query(ranked, {10}), {{"ndcg@10", 0},
                                 {"mrr@10", 0},
                                 {"map@100", 1.0 / 11},
                                 {"accuracy@10", 0},
                                 {"accuracy@100", 1}});
  check(of_query(ranked, {9}), {{"ndcg@10", 1 / std::log2(11)}, {"mrr@10", 0.1}});
  check(of_query(ranked, {100}), {{"map@100", 0}, {"recall@100", 0}});
}

TEST_CASE("means are over the queries with a relevant document") {
  using Relevant = std::unordered_map<int64_t, int>;
  const Metrics metrics =
      retrieval_metrics({{0}, {0}, {0}, {0, 1}},
                        {Relevant{{0, 2}}, Relevant{}, Relevant{{0, 0}}, Relevant{{1, 1}, {0, 0}}});
  check(metrics, {{"mrr@10", (1 + 0.5) / 2}, {"accuracy@1", 0.5}, {"recall@3", 1}});
  CHECK_THROWS_AS(retrieval_metrics({{0}}, {Relevant{{0, 0}}}), InputError);
  CHECK_THROWS_AS(retrieval_metrics({}, {}), InputError);
  CHECK_THROWS_AS(retrieval_metrics({{0}}, {}), Error);
}

TEST_CASE("the names are those of sentence-transformers, in a fixed order") {
  const Metrics metrics = of_query({1}, {1});
  std::string names;
  for (const auto& [name, value] : metrics) names += name + " ";
  CHECK(names ==
        "ndcg@10 mrr@10 map@100 accuracy@1 accuracy@3 accuracy@5 accuracy@10 accuracy@100 "
        "precision@1 precision@3 precision@5 precision@10 precision@100 recall@1 recall@3 recall@5 "
        "recall@10 recall@100 ");
  CHECK_THROWS_AS(metric(metrics, "ndcg@5"), Error);
}

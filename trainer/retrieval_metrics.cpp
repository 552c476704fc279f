#include "trainer/retrieval_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/error.h"

namespace maxim {
namespace {

constexpr std::array<int64_t, 5> kCutoffs = {1, 3, 5, 10, kMetricsDepth};

// Where the relevant documents stand, as ranks from 1.
std::vector<int64_t> ranks_of_hits(const std::vector<int64_t>& ranked,
                                   const std::unordered_map<int64_t, int>& relevant) {
  std::vector<int64_t> ranks;
  for (size_t i = 0; i < ranked.size(); ++i) {
    const auto found = relevant.find(ranked[i]);
    if (found != relevant.end() && found->second > 0) ranks.push_back(static_cast<int64_t>(i) + 1);
  }
  return ranks;
}

int64_t hits_within(const std::vector<int64_t>& ranks, int64_t k) {
  return std::upper_bound(ranks.begin(), ranks.end(), k) - ranks.begin();
}

double ndcg(const std::vector<int64_t>& ranks, int64_t relevant, int64_t k) {
  double gain = 0, ideal = 0;
  for (int64_t i = 0; i < hits_within(ranks, k); ++i) gain += 1 / std::log2(ranks[i] + 1);
  for (int64_t i = 1; i <= std::min(k, relevant); ++i) ideal += 1 / std::log2(i + 1);
  return gain / ideal;
}

double average_precision(const std::vector<int64_t>& ranks, int64_t relevant, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < hits_within(ranks, k); ++i) sum += static_cast<double>(i + 1) / ranks[i];
  return sum / std::min(k, relevant);
}

// All metrics of one query; `relevant` documents exist.
Metrics query_metrics(const std::vector<int64_t>& ranks, int64_t relevant) {
  Metrics metrics = {{"ndcg@10", ndcg(ranks, relevant, 10)},
                     {"mrr@10", hits_within(ranks, 10) > 0 ? 1.0 / ranks[0] : 0.0},
                     {"map@100", average_precision(ranks, relevant, 100)}};
  for (int64_t k : kCutoffs)
    metrics.emplace_back(fmt::format("accuracy@{}", k), hits_within(ranks, k) > 0 ? 1.0 : 0.0);
  for (int64_t k : kCutoffs)
    metrics.emplace_back(fmt::format("precision@{}", k),
                         static_cast<double>(hits_within(ranks, k)) / k);
  for (int64_t k : kCutoffs)
    metrics.emplace_back(fmt::format("recall@{}", k),
                         static_cast<double>(hits_within(ranks, k)) / relevant);
  return metrics;
}

}  // namespace

double metric(const Metrics& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics)
    if (key == name) return value;
  fail("there is no metric '{}'", name);
}

Metrics retrieval_metrics(const std::vector<std::vector<int64_t>>& ranked,
                          const std::vector<std::unordered_map<int64_t, int>>& relevant) {
  MAXIM_CHECK(ranked.size() == relevant.size(), "{} lists for {} queries", ranked.size(),
              relevant.size());
  Metrics mean;
  int64_t counted = 0;
  for (size_t q = 0; q < ranked.size(); ++q) {
    const int64_t total =
        std::count_if(relevant[q].begin(), relevant[q].end(), [](auto& r) { return r.second > 0; });
    if (total == 0) continue;
    const Metrics one = query_metrics(ranks_of_hits(ranked[q], relevant[q]), total);
    if (counted++ == 0) {
      mean = one;
    } else {
      for (size_t m = 0; m < mean.size(); ++m) mean[m].second += one[m].second;
    }
  }
  if (counted == 0) fail_input("no query has a relevant document: there is nothing to measure");
  for (auto& [name, value] : mean) value /= counted;
  return mean;
}

}  // namespace maxim

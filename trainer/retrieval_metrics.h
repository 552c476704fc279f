// Retrieval metrics as sentence-transformers' InformationRetrievalEvaluator defines them, relevance
// taken as yes or no. For a query with R relevant documents and hits h_1, h_2, … in {0, 1} of the
// ranked list:
//   accuracy@k   1 if any of h_1 … h_k is 1          precision@k  (h_1 + … + h_k) / k
//   recall@k     (h_1 + … + h_k) / R                 mrr@k        1 / rank of the first hit <= k
//   ndcg@k       sum_i<=k h_i / log2(i + 1)  over  sum_i<=min(k, R) 1 / log2(i + 1)
//   map@k        sum_i<=k h_i * precision@i / min(k, R)
// each the mean over the queries that have a relevant document. A list shorter than k counts as if
// misses followed, also in precision@k.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace maxim {

// Names and values in the order in which they are printed.
using Metrics = std::vector<std::pair<std::string, double>>;

// The value of `name`; throws Error for an unknown one.
double metric(const Metrics& metrics, const std::string& name);

// The longest list any metric looks at.
constexpr int64_t kMetricsDepth = 100;

// ndcg@10, mrr@10, map@100, then accuracy, precision and recall at 1, 3, 5, 10, 100. ranked[q]
// are document numbers, best first; relevant[q] maps document numbers to a relevance, where > 0 is
// relevant. Throws InputError when no query has a relevant document.
Metrics retrieval_metrics(const std::vector<std::vector<int64_t>>& ranked,
                          const std::vector<std::unordered_map<int64_t, int>>& relevant);

}  // namespace maxim

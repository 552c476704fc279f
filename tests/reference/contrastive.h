// The contrastive loss in plain double loops.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

// Token vectors on the host: those of text i are rows [offsets[i], offsets[i+1]).
struct Texts {
  std::vector<float> vectors;  // [tokens, width]
  std::vector<int32_t> offsets = {0};
  int64_t width = 8;

  int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t tokens() const { return offsets.back(); }
};

// Random unit vectors, a function of (seed, row).
Texts random_texts(const std::vector<int32_t>& lengths, int64_t width, uint32_t seed);
// Texts [begin, end).
Texts part_of(const Texts& texts, int64_t begin, int64_t end);

struct ContrastiveProblem {
  Texts queries, documents;  // document d * documents_per_query + k is the k-th of query d
  int64_t documents_per_query = 1;
  // Queries [groups[g], groups[g+1]) have the documents of the same queries as candidates: one
  // group is what gathering gives, one a rank what it is without.
  std::vector<int64_t> groups;
  double temperature = 1, scale = 1;
};

struct ContrastiveAnswer {
  std::vector<double> scores;  // [Nq, Nd]; 0 where j is no candidate of i
  double loss = 0;
  std::vector<double> d_queries, d_documents;
  // The least distance of a query token's best document token from its second best. Where it is
  // below rounding, floats may choose another winner, and gradients cannot be compared.
  double closest_race = 1;
};

ContrastiveAnswer contrastive_answer(const ContrastiveProblem& problem);

// What a loss or gradient may differ by, relative to its largest value: 1e-5, and more at low
// temperatures. A score is a sum of `query tokens` dot products of unit vectors, each wrong by a
// few epsilons, and its error is divided by the temperature before it becomes a relative error of
// exp.
double contrastive_tolerance(const ContrastiveProblem& problem);

}  // namespace maxim_tests

#include "tests/reference/contrastive.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/random.h"

namespace maxim_tests {
namespace {

double dot(const float* a, const float* b, int64_t width) {
  double sum = 0;
  for (int64_t k = 0; k < width; ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

// The winning token of document j for query token s, -1 if it has none, and its similarity.
std::pair<int64_t, double> winner_of(const ContrastiveProblem& problem, int64_t s, int64_t j,
                                     double& closest_race) {
  const Texts& documents = problem.documents;
  const int64_t width = documents.width;
  int64_t winner = -1;
  double best = -std::numeric_limits<double>::infinity(), second = best;
  for (int64_t t = documents.offsets[j]; t < documents.offsets[j + 1]; ++t) {
    const double similarity =
        dot(&problem.queries.vectors[s * width], &documents.vectors[t * width], width);
    if (similarity > best) {
      second = best;
      best = similarity;
      winner = t;
    } else {
      second = std::max(second, similarity);
    }
  }
  if (winner >= 0) closest_race = std::min(closest_race, best - second);
  return {winner, winner < 0 ? 0 : best};
}

}  // namespace

Texts random_texts(const std::vector<int32_t>& lengths, int64_t width, uint32_t seed) {
  Texts texts;
  texts.width = width;
  for (const int32_t length : lengths) texts.offsets.push_back(texts.offsets.back() + length);
  texts.vectors = random_floats(texts.tokens() * width, seed);
  for (int64_t t = 0; t < texts.tokens(); ++t) {
    float* vector = &texts.vectors[t * width];
    const double norm = std::sqrt(dot(vector, vector, width));
    for (int64_t k = 0; k < width; ++k) vector[k] = static_cast<float>(vector[k] / norm);
  }
  return texts;
}

Texts part_of(const Texts& texts, int64_t begin, int64_t end) {
  Texts part;
  part.width = texts.width;
  const int32_t first = texts.offsets[begin];
  for (int64_t i = begin; i < end; ++i) part.offsets.push_back(texts.offsets[i + 1] - first);
  part.vectors.assign(texts.vectors.begin() + first * texts.width,
                      texts.vectors.begin() + texts.offsets[end] * texts.width);
  return part;
}

ContrastiveAnswer contrastive_answer(const ContrastiveProblem& problem) {
  const int64_t query_count = problem.queries.count(), document_count = problem.documents.count();
  const int64_t per_query = problem.documents_per_query, width = problem.queries.width;
  ContrastiveAnswer answer;
  answer.scores.assign(query_count * document_count, 0.0);
  answer.d_queries.assign(problem.queries.vectors.size(), 0.0);
  answer.d_documents.assign(problem.documents.vectors.size(), 0.0);
  for (size_t g = 0; g + 1 < problem.groups.size(); ++g) {
    const int64_t first = problem.groups[g] * per_query, last = problem.groups[g + 1] * per_query;
    for (int64_t i = problem.groups[g]; i < problem.groups[g + 1]; ++i) {
      double* scores = &answer.scores[i * document_count];
      for (int64_t j = first; j < last; ++j)
        for (int64_t s = problem.queries.offsets[i]; s < problem.queries.offsets[i + 1]; ++s)
          scores[j] += winner_of(problem, s, j, answer.closest_race).second;
      const double largest = *std::max_element(scores + first, scores + last);
      double sum = 0;
      for (int64_t j = first; j < last; ++j)
        sum += std::exp((scores[j] - largest) / problem.temperature);
      const double positive = (scores[i * per_query] - largest) / problem.temperature;
      answer.loss += problem.scale * (std::log(sum) - positive);
      for (int64_t j = first; j < last; ++j) {
        const double p = std::exp((scores[j] - largest) / problem.temperature) / sum;
        const double d_score =
            problem.scale * (p - (j == i * per_query ? 1 : 0)) / problem.temperature;
        for (int64_t s = problem.queries.offsets[i]; s < problem.queries.offsets[i + 1]; ++s) {
          const int64_t t = winner_of(problem, s, j, answer.closest_race).first;
          if (t < 0) continue;
          for (int64_t k = 0; k < width; ++k) {
            answer.d_queries[s * width + k] += d_score * problem.documents.vectors[t * width + k];
            answer.d_documents[t * width + k] += d_score * problem.queries.vectors[s * width + k];
          }
        }
      }
    }
  }
  return answer;
}

double contrastive_tolerance(const ContrastiveProblem& problem) {
  int32_t longest = 0;
  for (int64_t i = 0; i < problem.queries.count(); ++i)
    longest = std::max(longest, problem.queries.offsets[i + 1] - problem.queries.offsets[i]);
  constexpr double kEpsilon = 1.2e-7;
  return 1e-5 + 4 * kEpsilon * longest / problem.temperature;
}

}  // namespace maxim_tests

#include "tests/reference/contrastive.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "loss/contrastive.h"
#include "tests/catch.h"
#include "tests/reference/compare.h"
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

maxim::Tensor put(maxim::Device& device, maxim::DeviceTensor& memory,
                  const std::vector<float>& values, int64_t rows, int64_t columns) {
  memory = maxim::DeviceTensor(device, maxim::DType::f32, rows * columns, "a test's operand");
  const maxim::Tensor view = memory.view().reshape(rows, columns);
  device.copy_in(view, values.data());
  return view;
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

ContrastiveResult run_contrastive(maxim::Ops& ops, maxim::Communicator& communicator,
                                  const Texts& queries, const Texts& documents,
                                  const ContrastiveRun& run) {
  maxim::Device& device = ops.device();
  maxim::ContrastiveLoss contrastive(ops, communicator,
                                     {.temperature = static_cast<float>(run.temperature),
                                      .gather_across_devices = run.gather,
                                      .documents_per_query = run.documents_per_query});
  // The bound is for the largest batch of any rank.
  int64_t sizes[] = {queries.count(), queries.tokens(), documents.count(), documents.tokens()};
  for (int64_t& size : sizes) {
    const std::vector<int64_t> all = communicator.all_gather_host(size);
    size = *std::max_element(all.begin(), all.end());
  }
  ContrastiveResult result;
  result.arena_bound =
      contrastive.arena_bytes(sizes[0], sizes[1], sizes[2], sizes[3], queries.width);
  maxim::Arena arena(device, result.arena_bound, "arena of a test");

  maxim::DeviceTensor q, d, d_q, d_d, loss;
  const auto nan_like = [](const std::vector<float>& v) {
    return std::vector<float>(v.size(), std::numeric_limits<float>::quiet_NaN());
  };
  const maxim::ContrastiveBatch batch{
      put(device, q, queries.vectors, queries.tokens(), queries.width),
      put(device, d, documents.vectors, documents.tokens(), documents.width), queries.offsets,
      documents.offsets};
  const maxim::Tensor d_queries =
      put(device, d_q, nan_like(queries.vectors), queries.tokens(), queries.width);
  const maxim::Tensor d_documents =
      put(device, d_d, nan_like(documents.vectors), documents.tokens(), documents.width);
  put(device, loss, {run.loss_before}, 1, 1);
  contrastive.run(batch, static_cast<float>(run.scale), loss.view(), d_queries, d_documents, arena);

  result.d_queries.resize(queries.vectors.size());
  result.d_documents.resize(documents.vectors.size());
  device.copy_out(&result.loss, loss.view());
  device.copy_out(result.d_queries.data(), d_queries);
  device.copy_out(result.d_documents.data(), d_documents);
  result.arena_peak = arena.peak();
  CHECK(arena.used() == 0);
  return result;
}

double contrastive_tolerance(const ContrastiveProblem& problem) {
  int32_t longest = 0;
  for (int64_t i = 0; i < problem.queries.count(); ++i)
    longest = std::max(longest, problem.queries.offsets[i + 1] - problem.queries.offsets[i]);
  constexpr double kEpsilon = 1.2e-7;
  return 1e-5 + 4 * kEpsilon * longest / problem.temperature;
}

void require_answer(const ContrastiveResult& got, const ContrastiveAnswer& want,
                    const ContrastiveProblem& problem) {
  REQUIRE(want.closest_race > 1e-6);  // else take another seed
  const double tolerance = contrastive_tolerance(problem);
  const auto bound = [&](const std::vector<double>& values) {
    double largest = 0;
    for (const double v : values) largest = std::max(largest, std::abs(v));
    return tolerance * largest;
  };
  require_close("d_queries", got.d_queries, want.d_queries, bound(want.d_queries), 0,
                problem.queries.width);
  require_close("d_documents", got.d_documents, want.d_documents, bound(want.d_documents), 0,
                problem.documents.width);
}

}  // namespace maxim_tests

#include "tests/reference/maxsim.h"

namespace maxim_tests {

MaxSim maxsim(const Texts& queries, const Texts& documents) {
  const int64_t nd = documents.count(), width = queries.width;
  MaxSim m{std::vector<double>(queries.count() * nd),
           std::vector<uint16_t>(queries.offsets.back() * nd, 65535)};
  for (int64_t i = 0; i < queries.count(); ++i)
    for (int64_t j = 0; j < nd; ++j)
      for (int64_t s = queries.offsets[i]; s < queries.offsets[i + 1]; ++s) {
        double best = 0;
        for (int64_t t = documents.offsets[j]; t < documents.offsets[j + 1]; ++t) {
          double dot = 0;
          for (int64_t k = 0; k < width; ++k)
            dot += queries.vectors[s * width + k] * documents.vectors[t * width + k];
          if (t > documents.offsets[j] && dot <= best) continue;
          best = dot;
          m.winners[s * nd + j] = static_cast<uint16_t>(t - documents.offsets[j]);
        }
        m.scores[i * nd + j] += best;
      }
  return m;
}

MaxSimGradients maxsim_gradients(const std::vector<double>& d_scores,
                                 const std::vector<uint16_t>& winners, const Texts& queries,
                                 const Texts& documents) {
  const int64_t nd = documents.count(), width = queries.width;
  MaxSimGradients g{std::vector<double>(queries.vectors.size()),
                    std::vector<double>(documents.vectors.size())};
  for (int64_t i = 0; i < queries.count(); ++i)
    for (int64_t s = queries.offsets[i]; s < queries.offsets[i + 1]; ++s)
      for (int64_t j = 0; j < nd; ++j) {
        if (documents.offsets[j] == documents.offsets[j + 1]) continue;
        const int64_t t = documents.offsets[j] + winners[s * nd + j];
        for (int64_t k = 0; k < width; ++k) {
          g.d_queries[s * width + k] += d_scores[i * nd + j] * documents.vectors[t * width + k];
          g.d_documents[t * width + k] += d_scores[i * nd + j] * queries.vectors[s * width + k];
        }
      }
  return g;
}

}  // namespace maxim_tests

// MaxSim in plain double loops.
#pragma once

#include <cstdint>
#include <vector>

namespace maxim_tests {

// Token vectors of texts: those of text i are rows [offsets[i], offsets[i + 1]) of `width` numbers.
struct Texts {
  std::vector<double> vectors;
  std::vector<int32_t> offsets;
  int64_t width;
  int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

struct MaxSim {
  std::vector<double> scores;     // [Nq, Nd]
  std::vector<uint16_t> winners;  // [Tq, Nd]
};
MaxSim maxsim(const Texts& queries, const Texts& documents);

struct MaxSimGradients {
  std::vector<double> d_queries, d_documents;
};
MaxSimGradients maxsim_gradients(const std::vector<double>& d_scores,
                                 const std::vector<uint16_t>& winners, const Texts& queries,
                                 const Texts& documents);

}  // namespace maxim_tests

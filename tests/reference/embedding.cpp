#include "tests/reference/embedding.h"

namespace maxim_tests {

std::vector<double> embedding_sum(const Ragged& sequences, const std::vector<double>& word,
                                  const std::vector<double>& position,
                                  const std::vector<double>& type, int64_t h) {
  std::vector<double> s(sequences.tokens() * h);
  for (int64_t t = 0; t < sequences.tokens(); ++t)
    for (int64_t j = 0; j < h; ++j)
      s[t * h + j] =
          word[sequences.token_ids[t] * h + j] + position[sequences.positions[t] * h + j] + type[j];
  return s;
}

void add_rows(std::vector<double>& table, const std::vector<double>& d,
              const std::vector<int32_t>& rows, int64_t h) {
  for (size_t t = 0; t < rows.size(); ++t)
    for (int64_t j = 0; j < h; ++j) table[rows[t] * h + j] += d[t * h + j];
}

}  // namespace maxim_tests

#include "tests/reference/dropout.h"

#include "kernels/dropout.h"

namespace maxim_tests {

std::vector<double> dropout_multipliers(const maxim::Dropout& dropout, const Ragged& sequences,
                                        int64_t columns) {
  std::vector<double> multipliers(sequences.tokens() * columns, 1.0);
  if (!dropout.active()) return multipliers;
  for (int64_t t = 0; t < sequences.tokens(); ++t)
    for (int64_t j = 0; j < columns; ++j) {
      const int32_t s = sequences.sequence_of[t];
      const maxim::Philox4 bits =
          maxim::dropout_bits(dropout.seed, dropout.step, dropout.site, sequences.random_rows[s],
                              sequences.random_columns[s], sequences.positions[t],
                              static_cast<uint32_t>(j / maxim::kDropoutGroup));
      const bool kept = maxim::dropout_bits_of(bits, static_cast<int>(j % maxim::kDropoutGroup)) >=
                        maxim::dropout_threshold(dropout.probability);
      multipliers[t * columns + j] = kept ? maxim::dropout_scale(dropout.probability) : 0;
    }
  return multipliers;
}

}  // namespace maxim_tests

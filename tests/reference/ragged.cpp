#include "tests/reference/ragged.h"

#include <algorithm>

#include "tests/reference/random.h"

namespace maxim_tests {

Ragged ragged(const std::vector<int32_t>& lengths, int32_t vocabulary, uint32_t seed) {
  Ragged r;
  r.offsets.push_back(0);
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t i = 0; i < lengths[s]; ++i) {
      r.scored_rows.push_back(static_cast<int32_t>(r.positions.size()));
      r.positions.push_back(i);
      r.sequence_of.push_back(static_cast<int32_t>(s));
    }
    r.offsets.push_back(static_cast<int32_t>(r.positions.size()));
    r.key_counts.push_back(lengths[s]);
    r.random_rows.push_back(static_cast<uint32_t>(100 + s / 3));
    r.random_columns.push_back(static_cast<uint32_t>(s % 3));
    r.longest = std::max<int64_t>(r.longest, lengths[s]);
  }
  r.token_ids = random_integers(r.offsets.back(), vocabulary, seed);
  r.scored_offsets = r.offsets;
  return r;
}

}  // namespace maxim_tests

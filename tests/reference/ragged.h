// Packed sequences of given lengths on the host, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace maxim_tests {

// The arrays behind maxim::Sequences; edit them before taking a view.
struct Ragged {
  std::vector<int32_t> token_ids, positions, sequence_of, offsets, key_counts;
  std::vector<uint32_t> random_rows, random_columns;
  std::vector<int32_t> scored_rows, scored_offsets;
  int64_t longest = 0;

  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t count() const { return static_cast<int64_t>(key_counts.size()); }
};

// Sequences of `lengths` rows (0 is legal). Token ids are random below `vocabulary`; every row is a
// key and is scored; sequence s is text column s % 3 of row 100 + s / 3 of the global batch.
Ragged ragged(const std::vector<int32_t>& lengths, int32_t vocabulary = 50, uint32_t seed = 1);

}  // namespace maxim_tests

// BERT's embeddings before LayerNorm, in plain double loops.
#pragma once

#include <vector>

#include "tests/reference/ragged.h"

namespace maxim_tests {

// [T, H]: word[id] + position[p] + row 0 of type.
std::vector<double> embedding_sum(const Ragged& sequences, const std::vector<double>& word,
                                  const std::vector<double>& position,
                                  const std::vector<double>& type, int64_t h);

// Adds d [T, H] to row rows[t] of the table [·, H].
void add_rows(std::vector<double>& table, const std::vector<double>& d,
              const std::vector<int32_t>& rows, int64_t h);

}  // namespace maxim_tests

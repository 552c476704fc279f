// Training text for the program tests: rows of words from tiny_bert's vocabulary, lengths very
// different from row to row, some texts empty; and the records that ./train leaves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace maxim_tests {

// TSV rows of a query, a positive and `negatives` negatives, as a function of the row's number,
// which counts from `first` (a multiple of 3).
std::string training_rows(int rows, int negatives, int first = 0);

// The records of output_dir/metrics.jsonl of one "type".
std::vector<nlohmann::json> records(const std::string& output_dir, const std::string& type);

}  // namespace maxim_tests

// Golden tensors of PyLate as packed batches and host vectors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/bert_config.h"
#include "model/parameters.h"
#include "runtime/safetensors.h"
#include "tests/reference/ragged.h"

namespace maxim_tests {

// Integers of an I64, I32 or U8 tensor.
std::vector<int64_t> read_integers(const maxim::SafetensorsFile& file, const std::string& name);
std::vector<float> read_floats(const maxim::SafetensorsFile& file, const std::string& name);

// Texts of a padded golden batch [texts, length], laid end to end: of a document the rows with
// attention 1; of a query all rows, the first of which (attention 1) are keys.
struct GoldenBatch {
  Ragged sequences;
  std::vector<int64_t> padded_rows;  // place of every packed row among the padded rows

  GoldenBatch();
  // `scored` says which of the padded rows take part in scoring. padded_rows of this part count
  // from `first_padded_row`.
  void append(const std::vector<int64_t>& ids, const std::vector<int64_t>& attention,
              const std::vector<int64_t>& scored, int64_t length, bool queries,
              int64_t first_padded_row = 0);
  // Rows of a padded tensor [.., columns] for the packed rows, or for the scored ones.
  std::vector<float> packed(const std::vector<float>& padded, int64_t columns) const;
  std::vector<float> scored(const std::vector<float>& padded, int64_t columns) const;
  // Makes every row a scored one.
  void score_all();
};

// The directory of the real MiniLM: environment variable MAXIM_MINILM, or build/minilm; or "",
// after saying why on standard output, when there is none.
std::string minilm_directory();

}  // namespace maxim_tests

// Rows of training text on disk: .jsonl or .tsv, either also .gz (recognised by its magic bytes).
// Files are mapped, indexed and checked once, at the start; the rows stay on disk.
//
// JSONL: one object a line. The query is the column `query` or `anchor`, else the first text
// column; every other text column is a document, in file order, positive first (a column named
// `positive` goes first); columns ending in
// `_id` are ignored; a column whose value is a list of strings is that many documents.
// TSV: query, positive, negatives…, raw: a tab splits, nothing quotes; no header unless the first
// row starts with query<TAB>positive. LF alone ends a line; one CR before it is dropped; a BOM is
// dropped. Every row has the first row's columns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace maxim {

struct TrainingDataOptions {
  bool skip_bad_rows = false;  // --bad_rows skip: count them; else the first one is an InputError
  int64_t max_bad_rows = -1;   // --max_bad_rows: more than this is an InputError; -1: any number
};

class TrainingData {
 public:
  // Throws InputError with file, line and reason; also when there is no row at all.
  TrainingData(const std::vector<std::string>& files, const TrainingDataOptions& options);
  ~TrainingData();
  TrainingData(TrainingData&&) noexcept;
  TrainingData& operator=(TrainingData&&) noexcept;

  int64_t rows() const;                 // good rows of all files, in order
  int64_t rejected() const;             // bad rows left out
  int64_t rows_read() const;            // all rows of the files, good and bad
  int64_t documents_per_query() const;  // 1 positive + negatives
  std::string description() const;      // columns and the first row, for the start log
  // The first bad rows; the number of rows whose negative equals the positive.
  const std::vector<std::string>& warnings() const;

  // One line a file: its path, its good rows and a hash of their text. Ranks compare it.
  std::string fingerprint() const;

  // Takes `count` rows, chosen by the seed, out of this set and returns them as their own. Both
  // keep the order of the files.
  TrainingData hold_out(int64_t count, uint64_t seed);
  // Number of row i among the good rows of all files, from 0; another one only after hold_out.
  int64_t row_number(int64_t i) const;

  // Texts of row i: query, positive, negatives…; `texts` is resized and overwritten. Thread-safe.
  void row(int64_t i, std::vector<std::string>& texts) const;

 private:
  struct State;
  TrainingData(std::shared_ptr<const State> state, std::vector<int64_t> selection);

  std::shared_ptr<const State> state_;
  std::vector<int64_t> selection_;  // row numbers, ascending
  bool selects_ = false;            // else all rows
};

}  // namespace maxim

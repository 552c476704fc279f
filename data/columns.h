// The columns of training rows: found in the first good row, demanded of every other. See
// training_data.h for the rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/json_row.h"

namespace maxim {

enum class RowFormat { jsonl, tsv };

class Columns {
 public:
  // Takes the columns from a row (or, for TSV, a header). Returns "" or why this row cannot give
  // them, and then stays unknown. Throws InputError, with `where` in front, for columns that no
  // other row can mend: teacher scores, no query, two queries, several positives.
  std::string take(RowFormat format, std::string_view line, const std::string& where);
  bool known() const { return documents_ > 0; }
  RowFormat format() const { return format_; }
  int64_t documents() const { return documents_; }  // 1 positive + negatives
  std::string description() const;                  // `query "query", documents "positive", …`

  // The texts of a row: query, positive, negatives…; `texts` is resized and overwritten, `scratch`
  // is any JsonRow. Returns "" or what is wrong with the row.
  std::string split(std::string_view line, JsonRow& scratch, std::vector<std::string>& texts) const;

  // Whether a TSV file's first line is its header.
  static bool is_header(std::string_view line);

 private:
  struct Column {
    std::string name;
    bool list = false;
    int64_t count = 1;  // texts of a list
    int64_t slot = 0;   // place of its first text in a row's texts
  };
  std::string take_json(std::string_view line, const std::string& where);
  std::string split_json(std::string_view line, JsonRow& row,
                         std::vector<std::string>& texts) const;
  std::string split_tsv(std::string_view line, std::vector<std::string>& texts) const;

  RowFormat format_ = RowFormat::jsonl;
  std::vector<Column> columns_;  // JSONL; query first, then the documents in order
  int64_t documents_ = 0;        // 0: not known yet
};

}  // namespace maxim

#include "tests/model/golden.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "runtime/files.h"

namespace maxim_tests {
namespace {

template <class T>
std::vector<int64_t> integers_of(const maxim::SafetensorsEntry& entry) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < entry.elements(); ++i) {
    T value;
    std::memcpy(&value, entry.data + i * sizeof(T), sizeof(T));
    values.push_back(static_cast<int64_t>(value));
  }
  return values;
}

std::vector<float> rows_of(const std::vector<float>& padded, int64_t columns,
                           const std::vector<int64_t>& rows) {
  std::vector<float> picked;
  for (const int64_t row : rows)
    picked.insert(picked.end(), padded.begin() + row * columns,
                  padded.begin() + (row + 1) * columns);
  return picked;
}

}  // namespace

std::vector<int64_t> read_integers(const maxim::SafetensorsFile& file, const std::string& name) {
  const maxim::SafetensorsEntry& entry = file.at(name);
  if (entry.dtype == "I64") return integers_of<int64_t>(entry);
  if (entry.dtype == "I32") return integers_of<int32_t>(entry);
  MAXIM_CHECK(entry.dtype == "U8", "{} is {}", name, entry.dtype);
  return integers_of<uint8_t>(entry);
}

std::vector<float> read_floats(const maxim::SafetensorsFile& file, const std::string& name) {
  std::vector<float> values(file.at(name).elements());
  maxim::read_as_float(file, name, values.data());
  return values;
}

GoldenBatch::GoldenBatch() {
  sequences.offsets.push_back(0);
  sequences.scored_offsets.push_back(0);
}

void GoldenBatch::append(const std::vector<int64_t>& ids, const std::vector<int64_t>& attention,
                         const std::vector<int64_t>& scored, int64_t length, bool queries,
                         int64_t first_padded_row) {
  Ragged& s = sequences;
  const auto texts = static_cast<int64_t>(ids.size()) / length;
  for (int64_t text = 0; text < texts; ++text) {
    int32_t rows = 0, keys = 0;
    for (int64_t i = text * length; i < (text + 1) * length; ++i) {
      if (!queries && attention[i] == 0) continue;
      if (scored[i] != 0) s.scored_rows.push_back(static_cast<int32_t>(s.tokens()));
      s.token_ids.push_back(static_cast<int32_t>(ids[i]));
      s.positions.push_back(rows++);
      s.sequence_of.push_back(static_cast<int32_t>(s.count()));
      padded_rows.push_back(first_padded_row + i);
      keys += attention[i] != 0;
    }
    s.offsets.push_back(static_cast<int32_t>(s.tokens()));
    s.scored_offsets.push_back(static_cast<int32_t>(s.scored_rows.size()));
    s.key_counts.push_back(keys);
    s.random_rows.push_back(static_cast<uint32_t>(text));
    s.random_columns.push_back(queries ? 0 : 1);
    s.longest = std::max<int64_t>(s.longest, rows);
  }
}

std::vector<float> GoldenBatch::packed(const std::vector<float>& padded, int64_t columns) const {
  return rows_of(padded, columns, padded_rows);
}

std::vector<float> GoldenBatch::scored(const std::vector<float>& padded, int64_t columns) const {
  std::vector<int64_t> rows;
  for (const int32_t row : sequences.scored_rows) rows.push_back(padded_rows[row]);
  return rows_of(padded, columns, rows);
}

void GoldenBatch::score_all() {
  sequences.scored_rows.resize(sequences.tokens());
  std::iota(sequences.scored_rows.begin(), sequences.scored_rows.end(), 0);
  sequences.scored_offsets = sequences.offsets;
}

std::string minilm_directory() {
  const char* variable = std::getenv("MAXIM_MINILM");
  const std::string directory = variable != nullptr ? variable : "build/minilm";
  if (maxim::file_exists(directory + "/model.safetensors")) return directory;
  std::printf("skipped: no MiniLM in %s (`make demo` puts it there; or set MAXIM_MINILM)\n",
              directory.c_str());
  return "";
}

}  // namespace maxim_tests

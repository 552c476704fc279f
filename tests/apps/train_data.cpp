#include "tests/apps/train_data.h"

#include <fstream>

#include "runtime/philox.h"

namespace maxim_tests {
namespace {

const char* const kWords[] = {"the",  "of",     "and",  "in",   "to",   "was",  "film",
                              "city", "war",    "game", "team", "year", "song", "river",
                              "area", "school", "band", "king", "life", "work"};

std::string text(uint32_t row, uint32_t column, int longest) {
  std::string result;
  const int words = static_cast<int>(maxim::philox(row, column, 0, 0, 7, 7).x[0] % (longest + 1));
  for (int i = 0; i < words; ++i) {
    const maxim::Philox4 bits = maxim::philox(row, column, i + 1, 0, 7, 7);
    if (i > 0) result += ' ';
    result += kWords[bits.x[0] % std::size(kWords)];
    if (bits.x[1] % 5 == 0) result += ",";  // a token of the skiplist
  }
  return result;
}

}  // namespace

std::string training_rows(int rows, int negatives, int first) {
  std::string result;
  for (int row = first; row < first + rows; ++row) {
    // Later rows have much longer documents, so that ranks differ.
    result += text(row, 0, 12);
    for (int column = 1; column <= 1 + negatives; ++column)
      result.append("\t").append(text(row, column, row % 3 == 0 ? 60 : 6));
    result += '\n';
  }
  return result;
}

std::vector<nlohmann::json> records(const std::string& output_dir, const std::string& type) {
  std::vector<nlohmann::json> result;
  std::ifstream file(output_dir + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    if (record.at("type") == type) result.push_back(std::move(record));
  }
  return result;
}

}  // namespace maxim_tests

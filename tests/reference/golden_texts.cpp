#include "tests/reference/golden_texts.h"

#include <cstring>

namespace maxim_tests {

std::vector<float> golden_floats(const maxim::SafetensorsFile& file, const std::string& name) {
  std::vector<float> values(file.at(name).elements());
  maxim::read_as_float(file, name, values.data());
  return values;
}

std::vector<uint8_t> golden_mask(const maxim::SafetensorsFile& file, const std::string& name) {
  const maxim::SafetensorsEntry& entry = file.at(name);
  std::vector<uint8_t> mask(entry.elements());
  std::memcpy(mask.data(), entry.data, mask.size());
  return mask;
}

Texts pack(const std::vector<float>& padded, const std::vector<uint8_t>& mask, int64_t texts,
           int64_t width) {
  Texts packed;
  packed.width = width;
  const int64_t positions = static_cast<int64_t>(mask.size()) / texts;
  for (int64_t i = 0; i < static_cast<int64_t>(mask.size()); ++i) {
    if (mask[i] != 0)
      packed.vectors.insert(packed.vectors.end(), padded.begin() + i * width,
                            padded.begin() + (i + 1) * width);
    if ((i + 1) % positions == 0)
      packed.offsets.push_back(static_cast<int32_t>(packed.vectors.size() / width));
  }
  return packed;
}

Texts golden_texts(const maxim::SafetensorsFile& file, const std::string& prefix,
                   const std::vector<std::string>& columns) {
  const std::vector<int64_t> shape = file.at(prefix + columns[0]).shape;  // [texts, positions, D]
  const int64_t text = shape[1] * shape[2];
  std::vector<float> padded;
  std::vector<uint8_t> mask;
  for (int64_t i = 0; i < shape[0]; ++i)
    for (const std::string& column : columns) {
      const std::vector<float> values = golden_floats(file, prefix + column);
      const std::vector<uint8_t> kept = column == "query"
                                            ? std::vector<uint8_t>(shape[0] * shape[1], 1)
                                            : golden_mask(file, "mask." + column);
      padded.insert(padded.end(), values.begin() + i * text, values.begin() + (i + 1) * text);
      mask.insert(mask.end(), kept.begin() + i * shape[1], kept.begin() + (i + 1) * shape[1]);
    }
  return pack(padded, mask, shape[0] * static_cast<int64_t>(columns.size()), shape[2]);
}

}  // namespace maxim_tests

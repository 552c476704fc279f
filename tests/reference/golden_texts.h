// Token vectors out of the golden files, where they are padded and masked.
#pragma once

#include <string>
#include <vector>

#include "runtime/safetensors.h"
#include "tests/reference/contrastive.h"

namespace maxim_tests {

std::vector<float> golden_floats(const maxim::SafetensorsFile& file, const std::string& name);

// A U8 tensor.
std::vector<uint8_t> golden_mask(const maxim::SafetensorsFile& file, const std::string& name);

// Golden tensors [texts, positions, width] named `prefix` + column, packed: the positions that
// "mask." + column keeps, all of a query's (expansion tokens are scored). Text i of column k
// becomes text i * columns + k, as the loss wants its documents.
Texts golden_texts(const maxim::SafetensorsFile& file, const std::string& prefix,
                   const std::vector<std::string>& columns);

// The rows of [texts, positions, width] that `mask` [texts, positions] keeps.
Texts pack(const std::vector<float>& padded, const std::vector<uint8_t>& mask, int64_t texts,
           int64_t width);

}  // namespace maxim_tests

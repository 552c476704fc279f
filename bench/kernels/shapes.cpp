#include <cmath>

#include "bench/kernels/operations.h"
#include "tests/reference/random.h"

namespace maxim::bench {

maxim_tests::Ragged text_rows(int64_t tokens) {
  constexpr int32_t kLength = 128, kSteps = 1 << 20;
  std::vector<int32_t> lengths(tokens / kLength, kLength);
  if (tokens % kLength != 0) lengths.push_back(static_cast<int32_t>(tokens % kLength));
  maxim_tests::Ragged rows = maxim_tests::ragged(lengths, kSteps);
  // V^u with u uniform in [0, 1): the word of rank r has a share near 1 / (r log V).
  for (int32_t& id : rows.token_ids)
    id = static_cast<int32_t>(std::pow(kVocabulary, static_cast<double>(id) / kSteps));
  return rows;
}

maxim_tests::Ragged small_rows() { return maxim_tests::ragged({1, 33, 0, 70, 17}); }

Dropout dropout_of(float probability) {
  return {.probability = probability, .seed = 0x123456789ABCDEF, .step = 17, .site = 5};
}

}  // namespace maxim::bench

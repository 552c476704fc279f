#include "tests/reference/random.h"

#include "runtime/philox.h"

namespace maxim_tests {
namespace {

uint32_t word(int64_t index, uint32_t seed) {
  const auto counter = static_cast<uint32_t>(index / 4);
  return maxim::philox(counter, 0, 0, 0, seed, 0x7E57u).x[index % 4];
}

}  // namespace

std::vector<float> random_floats(int64_t count, uint32_t seed, float scale) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = (2 * maxim::uniform(word(i, seed)) - 1) * scale;
  return values;
}

std::vector<int32_t> random_integers(int64_t count, int32_t bound, uint32_t seed) {
  std::vector<int32_t> values(count);
  for (int64_t i = 0; i < count; ++i)
    values[i] = static_cast<int32_t>(word(i, seed) % static_cast<uint32_t>(bound));
  return values;
}

uint32_t RandomStream::below(std::size_t bound) {
  return static_cast<uint32_t>(static_cast<uint64_t>(word(drawn_++, seed_)) * bound >> 32);
}

}  // namespace maxim_tests

#include "runtime/philox.h"

#include "tests/catch.h"

using namespace maxim;

namespace {

void require_words(const Philox4& got, const std::vector<uint32_t>& want) {
  REQUIRE(std::vector<uint32_t>(got.x, got.x + 4) == want);
}

}  // namespace

TEST_CASE("philox4x32-10 gives the known answers of Random123", "[philox]") {
  require_words(philox(0, 0, 0, 0, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffff;
  require_words(philox(ones, ones, ones, ones, ones, ones),
                {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // Counter and key are the digits of pi.
  require_words(philox(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0),
                {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform covers [0, 1) with 24 bits", "[philox]") {
  CHECK(uniform(0) == 0.0f);
  CHECK(uniform(0xff) == 0.0f);
  CHECK(uniform(0x80000000u) == 0.5f);
  CHECK(uniform(0xffffffffu) == 1.0f - 0x1p-24f);  // the largest float below 1
}

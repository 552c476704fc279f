#include "data/byte_trie.h"

#include <map>
#include <string>

#include "runtime/philox.h"
#include "tests/catch.h"

using maxim::ByteTrie;

namespace {

using Keys = std::map<std::string, int32_t>;

ByteTrie trie_of(const Keys& keys) {
  return ByteTrie(std::vector<std::pair<std::string_view, int32_t>>(keys.begin(), keys.end()));
}

// The definition: try every length.
ByteTrie::Match longest_of(const Keys& keys, const std::string& text) {
  for (size_t n = text.size(); n > 0; --n)
    if (const auto found = keys.find(text.substr(0, n)); found != keys.end())
      return {found->second, text.data() + n};
  return {-1, text.data()};
}

}  // namespace

TEST_CASE("byte trie: longest key at a place") {
  const ByteTrie trie = trie_of({{"a", 3}, {"abc", 5}, {"##b", 7}, {"b", 0}});
  const std::string text = "abdabc";
  const auto at = [&](size_t from) {
    const auto match = trie.longest(ByteTrie::kRoot, &text[from], text.data() + text.size());
    return std::pair{match.value, match.end - &text[from]};
  };
  CHECK(at(0) == std::pair{3, 1L});  // "ab" leads on, but is no key
  CHECK(at(1) == std::pair{0, 1L});
  CHECK(at(2) == std::pair{-1, 0L});
  CHECK(at(3) == std::pair{5, 3L});
  CHECK(trie.longest(trie.walk("##"), &text[1], text.data() + text.size()).value == 7);
  CHECK(trie.walk("#x") == ByteTrie::kNone);
  CHECK(trie.find("abc") == 5);
  CHECK(trie.find("ab") == -1);
  CHECK(trie.find("") == -1);
}

TEST_CASE("byte trie: no keys") {
  const ByteTrie trie;
  for (int byte = 0; byte < 256; ++byte)
    REQUIRE(trie.step(ByteTrie::kRoot, static_cast<char>(byte)) == ByteTrie::kNone);
  CHECK(trie.walk("") == ByteTrie::kRoot);
}

TEST_CASE("byte trie: keys that are empty or repeated are refused") {
  CHECK_THROWS(ByteTrie({{"", 1}}));
  CHECK_THROWS(ByteTrie({{"a", 1}, {"a", 2}}));
  CHECK_THROWS(ByteTrie({{"a", -1}}));
}

// Alphabets from 2 bytes (deep, shared prefixes) to 256 (wide nodes, all bytes): each key is found,
// and of random texts the longest key.
TEST_CASE("byte trie: against a map") {
  for (const uint32_t alphabet : {2u, 5u, 26u, 256u}) {
    uint32_t count = 0;
    const auto random = [&](uint32_t n) {
      return maxim::philox(count++, alphabet, 0, 0, 3, 4).x[0] % n;
    };
    const auto word = [&](uint32_t longest) {
      std::string text;
      for (uint32_t n = 1 + random(longest); n > 0; --n)
        text += static_cast<char>((alphabet == 256 ? 0 : 'a') + random(alphabet));
      return text;
    };
    Keys keys;
    for (int i = 0; i < 5000; ++i) keys.emplace(word(alphabet == 256 ? 3 : 12), i);
    const ByteTrie trie = trie_of(keys);
    for (const auto& [key, value] : keys) REQUIRE(trie.find(key) == value);
    for (int i = 0; i < 5000; ++i) {
      const std::string text = word(16);
      const auto expected = longest_of(keys, text);
      const auto found = trie.longest(ByteTrie::kRoot, text.data(), text.data() + text.size());
      REQUIRE(found.value == expected.value);
      REQUIRE(found.end == expected.end);
      REQUIRE((trie.find(text) >= 0) == keys.contains(text));
    }
  }
}

// Tokens that are found in a text as they stand, before it is cut into words: [MASK], "[Q] ".
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_trie.h"

namespace maxim {

// The fields of an entry of tokenizer.json's added_tokens.
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // only where no word character stands before or behind
  bool lstrip = false;       // takes the whitespace before it along
  bool rstrip = false;       // takes the whitespace behind it along
  bool normalized = true;    // its normal form is looked for in the normalised text
  bool special = false;
  bool operator==(const AddedToken&) const = default;
};

// Finds the added tokens of one kind, normalised or not: the longest one that starts at a place.
// A search from left to right that continues behind each find (also behind one that single_word
// then refuses) is the leftmost-longest search of `tokenizers`.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Pattern i stands for tokens[i] and is not empty; of equal patterns the first counts.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns);

  bool empty() const { return tokens_.empty(); }
  bool may_start_with(char byte) const { return first_bytes_[static_cast<uint8_t>(byte)]; }
  size_t longest_pattern() const { return longest_pattern_; }
  bool any_strips_left() const {
    return std::any_of(tokens_.begin(), tokens_.end(),
                       [](const AddedToken& t) { return t.lstrip; });
  }

  struct Match {
    const AddedToken* token;  // nullptr: none
    const char* end;
  };
  Match at(const char* text, const char* end) const {
    const ByteTrie::Match match = trie_.longest(ByteTrie::kRoot, text, end);
    return {match.value < 0 ? nullptr : &tokens_[match.value], match.end};
  }

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;
  std::array<bool, 256> first_bytes_{};
  size_t longest_pattern_ = 0;
};

}  // namespace maxim

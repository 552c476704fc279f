#include "data/added_tokens.h"

#include <set>
#include <utility>

#include "runtime/error.h"

namespace maxim {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens,
                                     const std::vector<std::string>& patterns)
    : tokens_(std::move(tokens)) {
  MAXIM_CHECK(tokens_.size() == patterns.size(), "{} tokens, {} patterns", tokens_.size(),
              patterns.size());
  std::vector<std::pair<std::string_view, int32_t>> keys;
  std::set<std::string_view> seen;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (!seen.insert(patterns[i]).second) continue;
    keys.emplace_back(patterns[i], static_cast<int32_t>(i));
    first_bytes_[static_cast<uint8_t>(patterns[i].front())] = true;
    longest_pattern_ = std::max(longest_pattern_, patterns[i].size());
  }
  trie_ = ByteTrie(std::move(keys));
}

}  // namespace maxim

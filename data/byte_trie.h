// A static map from byte strings to numbers that finds the longest key at a place in a text: a
// double array (Aoe 1989) in the XOR form of Yata's Darts-clone.
//
// A node is one 32-bit unit: the label of the edge that leads to it (9 bits, 256 = unused slot),
// whether a key ends there (1 bit), and its base (22 bits). Its child by byte b is the unit at
// base ^ b, if that unit bears the label b; no two nodes share a base. BERT's vocabulary makes
// about 76,000 nodes, 0.3 MB: it stays in a core's L2 cache, and a step is one dependent load.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace maxim {

class ByteTrie {
 public:
  ByteTrie() : ByteTrie(std::vector<std::pair<std::string_view, int32_t>>{}) {}
  // Keys in any order, distinct, not empty; values >= 0. Throws InputError when they need more than
  // 4 million nodes.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> keys);

  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = ~0u;

  // The node behind the edge `byte` of `node`, or kNone.
  uint32_t step(uint32_t node, char byte) const {
    const auto label = static_cast<uint8_t>(byte);
    const uint32_t child = (units_[node] >> kBaseShift) ^ label;
    return (units_[child] & kLabelMask) == label ? child : kNone;
  }
  // The node of all keys that start with `prefix`, or kNone.
  uint32_t walk(std::string_view prefix) const;

  // The value of the key that ends at `node`, or -1.
  int32_t value(uint32_t node) const { return units_[node] & kEndsKey ? values_[node] : -1; }
  bool ends_key(uint32_t node) const { return units_[node] & kEndsKey; }
  int32_t find(std::string_view key) const;  // -1: not there

  struct Match {
    int32_t value;  // -1: none
    const char* end;
  };
  // The longest rest of a key, at least one byte, that leads on from `node` along text..end.
  Match longest(uint32_t node, const char* text, const char* end) const {
    Match match{-1, text};
    for (; text < end && (node = step(node, *text)) != kNone;) {
      ++text;
      if (ends_key(node)) match = {values_[node], text};
    }
    return match;
  }

 private:
  static constexpr uint32_t kLabelMask = 0x1FF, kUnused = 0x100, kEndsKey = 0x200;
  static constexpr int kBaseShift = 10;

  class Builder;
  std::vector<uint32_t> units_;
  std::vector<int32_t> values_;
};

}  // namespace maxim

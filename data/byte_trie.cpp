#include "data/byte_trie.h"

#include <algorithm>

#include "runtime/error.h"

namespace maxim {

// Gives each node a base at which the slots of all its children are free. Slots come in blocks of
// 256, since base ^ byte stays in the block of the base. Free slots are a linked list, from which a
// block is taken out when kOpenBlocks younger ones exist, so that building takes linear time.
class ByteTrie::Builder {
 public:
  explicit Builder(ByteTrie& trie) : trie_(trie) {
    add_block();
    take(kRoot, kUnused);  // a label that no edge has
  }

  void build(const std::vector<std::pair<std::string_view, int32_t>>& keys) {
    struct Range {
      uint32_t node;
      size_t first, last, depth;  // keys[first, last) share `depth` bytes, which lead to the node
    };
    std::vector<Range> open{{kRoot, 0, keys.size(), 0}};
    std::vector<uint32_t> leaves;
    std::vector<size_t> starts;
    while (!open.empty()) {
      Range r = open.back();
      open.pop_back();
      if (r.first < r.last && keys[r.first].first.size() == r.depth) {
        trie_.units_[r.node] |= kEndsKey;
        trie_.values_[r.node] = keys[r.first++].second;
      }
      if (r.first == r.last) {
        leaves.push_back(r.node);
        continue;
      }
      labels_.clear();
      starts.clear();
      for (size_t i = r.first; i < r.last; ++i) {
        const auto label = static_cast<uint8_t>(keys[i].first[r.depth]);
        if (!labels_.empty() && labels_.back() == label) continue;
        labels_.push_back(label);
        starts.push_back(i);
      }
      starts.push_back(r.last);
      const uint32_t base = find_base();
      is_base_[base] = true;
      trie_.units_[r.node] |= base << kBaseShift;
      for (size_t i = labels_.size(); i-- > 0;) {
        take(base ^ labels_[i], labels_[i]);
        open.push_back({base ^ labels_[i], starts[i], starts[i + 1], r.depth + 1});
      }
    }
    // A node without children points at a block of its own, in which every slot is unused.
    const uint32_t empty = add_block();
    for (const uint32_t leaf : leaves) trie_.units_[leaf] |= empty << kBaseShift;
  }

 private:
  static constexpr uint32_t kOpenBlocks = 16, kTaken = ~0u;

  uint32_t add_block() {
    const auto begin = static_cast<uint32_t>(trie_.units_.size());
    const size_t size = size_t{begin} + 256;
    if (size > size_t{1} << (32 - kBaseShift))
      fail_input("the vocabulary is too large: its words have more than {} distinct beginnings",
                 1 << (32 - kBaseShift));
    trie_.units_.resize(size, kUnused);
    trie_.values_.resize(size, -1);
    is_base_.resize(size);
    links_.resize(size);
    for (uint32_t slot = begin; slot < size; ++slot) {  // to the end of the list
      const uint32_t last = head_ == kTaken ? slot : links_[head_].previous;
      if (head_ == kTaken) head_ = slot;
      links_[last].next = slot;
      links_[slot] = {head_, last};
      links_[head_].previous = slot;
    }
    if (begin >= kOpenBlocks * 256)
      for (uint32_t slot = begin - kOpenBlocks * 256, i = 0; i < 256; ++i)
        if (is_free(slot + i)) unlink(slot + i);
    return begin;
  }

  bool is_free(uint32_t slot) const { return links_[slot].next != kTaken; }
  void unlink(uint32_t slot) {
    const Link link = links_[slot];
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
    if (head_ == slot) head_ = link.next == slot ? kTaken : link.next;
    links_[slot] = {kTaken, kTaken};
  }
  void take(uint32_t slot, uint32_t label) {
    unlink(slot);
    trie_.units_[slot] = label;
  }

  // A base that no node has and whose slots for labels_ are free.
  uint32_t find_base() {
    if (head_ != kTaken) {
      uint32_t slot = head_;
      do {
        const uint32_t base = slot ^ labels_[0];
        if (!is_base_[base] && std::all_of(labels_.begin(), labels_.end(),
                                           [&](uint8_t label) { return is_free(base ^ label); }))
          return base;
        slot = links_[slot].next;
      } while (slot != head_);
    }
    return add_block();
  }

  struct Link {
    uint32_t next, previous;  // kTaken: not in the list
  };

  ByteTrie& trie_;
  std::vector<Link> links_;
  uint32_t head_ = kTaken;
  std::vector<bool> is_base_;
  std::vector<uint8_t> labels_;  // of the children of the node at hand
};

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> keys) {
  std::sort(keys.begin(), keys.end());
  for (size_t i = 0; i < keys.size(); ++i)
    MAXIM_CHECK(!keys[i].first.empty() && keys[i].second >= 0 &&
                    (i == 0 || keys[i].first != keys[i - 1].first),
                "key '{}' with value {}", keys[i].first, keys[i].second);
  Builder(*this).build(keys);
}

uint32_t ByteTrie::walk(std::string_view prefix) const {
  uint32_t node = kRoot;
  for (const char byte : prefix)
    if ((node = step(node, byte)) == kNone) return kNone;
  return node;
}

int32_t ByteTrie::find(std::string_view key) const {
  const uint32_t node = walk(key);
  return node == kNone || key.empty() ? -1 : value(node);
}

}  // namespace maxim

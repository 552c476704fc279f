#include "data/bert_normalizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/bert_unicode.h"
#include "runtime/error.h"

namespace maxim {

namespace {

// What happens to a code point. An entry of the table is kind | offset << 3, the offset being that
// of a length byte and as many bytes in Table::strings.
enum Kind : uint32_t {
  kCopy,
  kSpaced,     // ' ' c ' '
  kReplace,    // by the string at the offset
  kHangul,     // a syllable, decomposed by arithmetic
  kBoundary,   // removed, but combining characters do not move past it
  kRemove,     // as if it were not there
  kCombining,  // has a part that stays and may move: see append_combining()
};

// The longest normal form is three times as long as its source: U+0CCB becomes three characters of
// three bytes, an invalid byte U+FFFD.
constexpr size_t kGrowth = 3;

constexpr char32_t kHangulFirst = 0xAC00, kHangulLast = 0xD7A3;
// Beyond the supplementary ideographs nothing is decomposed, spaced or lower-cased, and the only
// marks are variation selectors, of class 0.
constexpr char32_t kLastMapped = 0x2FFFF;

enum Flag : uint8_t { kIsRemoved = 1, kIsSpace = 2, kIsChinese = 4, kIsMark = 8 };

// The properties of all code points, painted range by range: 1.1 MB for a moment, where searching
// 300 ranges for each code point would take 20 ms.
std::vector<uint8_t> paint_flags() {
  std::vector<uint8_t> flags(0x110000);
  const auto paint = [&](std::span<const CodePointRange> ranges, uint8_t flag) {
    for (const CodePointRange& r : ranges)
      for (char32_t c = r.first; c <= r.last; ++c) flags[c] |= flag;
  };
  paint(removed_ranges(), kIsRemoved);
  paint(whitespace_ranges(), kIsSpace);
  paint(chinese_ranges(), kIsChinese);
  paint(nonspacing_mark_ranges(), kIsMark);
  return flags;
}

// Combining characters that wait for the end of their run, with their classes.
using Pending = std::vector<std::pair<uint8_t, char32_t>>;

}  // namespace

struct BertNormalizer::Table {
  explicit Table(const NormalizerOptions& options);
  static const Table& shared(const NormalizerOptions& options);

  NormalizerOptions options;
  // The normal form of a byte that is an ASCII character and stays one; 0: see the entry.
  std::array<uint8_t, 256> ascii{};
  std::array<uint16_t, 0x1100> page_of{};
  std::vector<std::array<uint32_t, 256>> pages;
  std::string strings;

  uint32_t entry(char32_t c) const { return pages[page_of[c >> 8]][c & 0xFF]; }
  Kind kind(char32_t c) const { return static_cast<Kind>(entry(c) & 7); }
  char* append(const char* text, const char* end, char* out) const;
  char* append_one(char32_t c, char* out, Pending& pending) const;
  char* append_combining(char32_t c, char* out, Pending& pending) const;
  char* append_lower(char32_t c, char* out) const;
  char* flush(Pending& pending, char* out) const;
  uint32_t make_entry(char32_t c, const std::vector<uint8_t>& flags);
};

BertNormalizer::Table::Table(const NormalizerOptions& chosen) : options(chosen) {
  const std::vector<uint8_t> flags = paint_flags();
  std::unordered_map<std::string, uint16_t> known_pages;  // most of the 4352 are alike
  for (char32_t page = 0; page < page_of.size(); ++page) {
    std::array<uint32_t, 256> entries;
    for (char32_t i = 0; i < 256; ++i) entries[i] = make_entry(page << 8 | i, flags);
    const std::string bytes(reinterpret_cast<const char*>(entries.data()), sizeof entries);
    const auto [known, is_new] = known_pages.try_emplace(bytes, pages.size());
    if (is_new) pages.push_back(entries);
    page_of[page] = known->second;
  }
  for (char32_t c = 0; c < 0x80; ++c) {
    if (kind(c) == kCopy) ascii[c] = static_cast<uint8_t>(c);
    if (kind(c) == kReplace) ascii[c] = static_cast<uint8_t>(strings[(entry(c) >> 3) + 1]);
  }
}

const BertNormalizer::Table& BertNormalizer::Table::shared(const NormalizerOptions& options) {
  static std::array<std::once_flag, 16> once;
  static std::array<std::unique_ptr<const Table>, 16> tables;
  const int i = options.clean_text | options.handle_chinese_chars << 1 |
                options.strip_accents << 2 | options.lowercase << 3;
  std::call_once(once[i], [&] { tables[i] = std::make_unique<const Table>(options); });
  return *tables[i];
}

uint32_t BertNormalizer::Table::make_entry(char32_t c, const std::vector<uint8_t>& flags) {
  if (options.clean_text && (flags[c] & kIsRemoved)) return kRemove;
  const bool spaced = options.handle_chinese_chars && (flags[c] & kIsChinese);
  if (c > kLastMapped) return options.strip_accents && (flags[c] & kIsMark) ? kBoundary : kCopy;

  char32_t parts[4] = {options.clean_text && (flags[c] & kIsSpace) ? U' ' : c};
  int count = 1;
  if (options.strip_accents) {
    if (c >= kHangulFirst && c <= kHangulLast) return kHangul;
    const int all = decompose(parts[0], parts);
    bool boundary = false;
    count = 0;
    for (int i = 0; i < all; ++i) {
      const bool starter = combining_class(parts[i]) == 0;
      boundary |= starter;
      if (flags[parts[i]] & kIsMark) continue;
      if (!starter) return kCombining;
      parts[count++] = parts[i];
    }
    if (count == 0) return boundary ? kBoundary : kRemove;
  }
  if (count == 1 && parts[0] == c) {
    char32_t lower[2];
    if (!options.lowercase || (lower_case(c, lower) == 1 && lower[0] == c))
      return spaced ? kSpaced : kCopy;
  }

  char text[32], *end = text;
  if (spaced) *end++ = ' ';
  for (int i = 0; i < count; ++i) end = append_lower(parts[i], end);
  if (spaced) *end++ = ' ';
  char source[4];
  MAXIM_CHECK(end - text <= static_cast<int64_t>(kGrowth) * (encode_utf8(c, source) - source),
              "U+{:04X} becomes {} bytes", uint32_t{c}, end - text);
  const auto offset = static_cast<uint32_t>(strings.size());
  strings += static_cast<char>(end - text);
  strings.append(text, end);
  return kReplace | offset << 3;
}

char* BertNormalizer::Table::append_lower(char32_t c, char* out) const {
  char32_t lower[2] = {c};
  const int count = options.lowercase ? lower_case(c, lower) : 1;
  for (int i = 0; i < count; ++i) out = encode_utf8(lower[i], out);
  return out;
}

char* BertNormalizer::Table::flush(Pending& pending, char* out) const {
  std::stable_sort(pending.begin(), pending.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [combining, c] : pending) out = append_lower(c, out);
  pending.clear();
  return out;
}

// The general case: decompose, drop marks, hold back what may move until something of class 0 ends
// its run. A dropped mark of another class than 0 does not change the order of those that stay.
char* BertNormalizer::Table::append_combining(char32_t c, char* out, Pending& pending) const {
  char32_t parts[4];
  const int count = decompose(c, parts);
  for (int i = 0; i < count; ++i) {
    const Kind part = kind(parts[i]);
    if (part == kRemove) continue;
    if (part == kCombining) {
      pending.emplace_back(combining_class(parts[i]), parts[i]);
      continue;
    }
    out = flush(pending, out);
    if (part != kBoundary) out = append_lower(parts[i], out);
  }
  return out;
}

char* BertNormalizer::Table::append_one(char32_t c, char* out, Pending& pending) const {
  const uint32_t entry = this->entry(c);
  const auto kind = static_cast<Kind>(entry & 7);
  if (kind == kRemove) return out;
  if (kind == kCombining) return append_combining(c, out, pending);
  if (!pending.empty()) out = flush(pending, out);
  switch (kind) {
    case kSpaced:
      *out++ = ' ';
      out = encode_utf8(c, out);
      *out++ = ' ';
      return out;
    case kReplace: {
      const char* text = strings.data() + (entry >> 3);
      std::memcpy(out, text + 1, *text);
      return out + *text;
    }
    case kHangul: {  // Unicode 15, section 3.12: 21 vowels, 28 final consonants or none
      const char32_t s = c - kHangulFirst;
      out = encode_utf8(0x1100 + s / (21 * 28), out);
      out = encode_utf8(0x1161 + s / 28 % 21, out);
      return s % 28 == 0 ? out : encode_utf8(0x11A7 + s % 28, out);
    }
    case kBoundary:
      return out;
    default:
      return encode_utf8(c, out);
  }
}

char* BertNormalizer::Table::append(const char* text, const char* end, char* out) const {
  Pending pending;
  while (text < end) {
    uint8_t simple = ascii[static_cast<uint8_t>(*text)];
    if (simple == 0) {
      const CodePoint c = decode_utf8(text, end);
      out = append_one(c.value, out, pending);
      text += c.bytes;
      continue;
    }
    if (!pending.empty()) out = flush(pending, out);
    do {
      *out++ = static_cast<char>(simple);
    } while (++text < end && (simple = ascii[static_cast<uint8_t>(*text)]) != 0);
  }
  return flush(pending, out);
}

BertNormalizer::BertNormalizer(const NormalizerOptions& options)
    : table_(&Table::shared(options)) {}

void BertNormalizer::append(std::string_view raw, std::string& out) const {
  const size_t old = out.size();
  out.resize(old + kGrowth * raw.size());
  const char* end = table_->append(raw.data(), raw.data() + raw.size(), out.data() + old);
  out.resize(end - out.data());
}

std::string BertNormalizer::operator()(std::string_view raw) const {
  std::string out;
  append(raw, out);
  return out;
}

size_t BertNormalizer::safe_cut(std::string_view raw, size_t at_most) const {
  if (at_most >= raw.size()) return raw.size();
  for (size_t n = at_most; n > 0; --n) {
    // Whatever stands before a byte that continues nothing, decoding starts anew at that byte.
    if (is_utf8_continuation(raw[n])) continue;
    const Kind kind = table_->kind(decode_utf8(raw.data() + n, raw.data() + raw.size()).value);
    if (!table_->options.strip_accents || (kind != kRemove && kind != kCombining)) return n;
  }
  return 0;
}

}  // namespace maxim

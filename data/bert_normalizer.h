// The text normaliser of BERT, byte for byte that of Hugging Face's BertNormalizer:
//
//   clean_text            controls removed, whitespace -> ' '
//   handle_chinese_chars  a blank on each side of a Chinese character
//   strip_accents         canonical decomposition of the text, then nonspacing marks removed
//   lowercase             each code point on its own (no final sigma)
//
// in this order. Only the decomposition looks at neighbours: it sorts the combining characters
// behind a base character by class. Most of those are then removed, so what remains of the four
// steps is, for all but some 80 code points, a map from a code point to a string: one table of
// 32-bit entries on pages of 256, shared by all normalisers with the same options (about 0.2 MB).
// ASCII goes through a table of 256 bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace maxim {

struct NormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;  // tokenizer.json's null means: as lowercase
  bool lowercase = true;
};

class BertNormalizer {
 public:
  explicit BertNormalizer(const NormalizerOptions& options);

  // Appends the normal form of `raw` to `out`. Invalid UTF-8 counts as U+FFFD, which clean_text
  // removes. Thread-safe.
  void append(std::string_view raw, std::string& out) const;
  std::string operator()(std::string_view raw) const;

  // The largest n <= at_most at which `raw` may be cut so that the normal forms of the two parts
  // make up that of the whole; 0 when there is no such place. raw.size() is always one.
  size_t safe_cut(std::string_view raw, size_t at_most) const;

  struct Table;

 private:
  const Table* table_;  // static
};

}  // namespace maxim

// What Hugging Face's `tokenizers` 0.22 knows about Unicode, which is what token ids depend on.
//
// Its tables are of different ages: the general categories (control, mark, punctuation) are those
// of Unicode 8, decompositions and combining classes of Unicode 9, lower case of Unicode 17, word
// characters of Unicode 16. A system's Unicode library has one age, and another one on the next
// machine. So the categories stand here as ranges, asked from `tokenizers` itself by
// tests/interop/make_unicode_tables.py; decompositions, combining classes and lower case, which
// Unicode's stability policy freezes once a character exists, come from utf8proc, cut or extended
// where it is younger or older.
#pragma once

#include <cstdint>
#include <span>

namespace maxim {

struct CodePoint {
  char32_t value;
  int bytes;  // of the text that it stands for
};

// The code point at `text` < `end`. Invalid UTF-8 gives U+FFFD for each maximal subpart, as the
// WHATWG decoder does (Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts").
CodePoint decode_utf8(const char* text, const char* end);

// The code point that ends at `text` > `begin`; U+FFFD and one byte when the text there is invalid.
CodePoint decode_utf8_backwards(const char* begin, const char* text);

// Writes `c` to `out` (at most 4 bytes) and returns the end of what it wrote.
char* encode_utf8(char32_t c, char* out);

inline bool is_utf8_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

struct CodePointRange {
  char32_t first, last;
};

// Removed by BertNormalizer's clean_text: controls, format characters, private use, NUL, U+FFFD.
std::span<const CodePointRange> removed_ranges();
// Nonspacing marks (Mn), removed by strip_accents.
std::span<const CodePointRange> nonspacing_mark_ranges();
// Spaced by handle_chinese_chars. U+2B820..2B91F are missing, as in `tokenizers`.
std::span<const CodePointRange> chinese_ranges();
// Isolated by BertPreTokenizer: ASCII punctuation and categories P*.
std::span<const CodePointRange> punctuation_ranges();
// White_Space: Rust's char::is_whitespace and \s of its regular expressions.
std::span<const CodePointRange> whitespace_ranges();

bool is_whitespace(char32_t c);
// \w of Rust's regular expressions, which decides where a single_word token may stand.
bool is_word_character(char32_t c);

// Lower case of one code point on its own: one code point, but two for U+0130. Returns their count.
int lower_case(char32_t c, char32_t out[2]);
// Full canonical decomposition (NFD) of one code point, `c` itself included. Returns the count.
int decompose(char32_t c, char32_t out[4]);
// Canonical combining class; 0 for a character younger than Unicode 9.
uint8_t combining_class(char32_t c);

// The splits of BertPreTokenizer.
enum class CharacterClass : uint8_t { kWord, kSpace, kPunctuation };
CharacterClass character_class(char32_t c);

}  // namespace maxim

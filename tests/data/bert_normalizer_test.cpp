#include "data/bert_normalizer.h"

#include <map>
#include <string>
#include <vector>

#include "data/bert_unicode.h"
#include "runtime/files.h"
#include "runtime/philox.h"
#include "tests/catch.h"

using maxim::BertNormalizer;

namespace {

std::string utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) {
    char buffer[4];
    bytes.append(buffer, maxim::encode_utf8(c, buffer));
  }
  return bytes;
}

std::string utf8(char32_t c) { return utf8(std::u32string_view(&c, 1)); }

// What tokenizer_unicode.json says becomes of each code point; Hangul is not listed there.
std::vector<std::string> expected_forms(const nlohmann::ordered_json& variant) {
  std::vector<std::string> forms(0x110000);
  for (char32_t c = 0; c < 0x110000; ++c) forms[c] = utf8(c);
  for (const auto& [code, text] : variant["mapped"].items()) forms[std::stoul(code)] = text;
  const auto for_all = [&](const char* key, const auto& change) {
    for (const auto& range : variant[key])
      for (char32_t c = range[0]; c <= range[1].get<char32_t>(); ++c) change(forms[c]);
  };
  for_all("cjk_spaced", [](std::string& form) { form.insert(form.begin(), ' '), form += ' '; });
  for_all("to_space", [](std::string& form) { form.assign(1, ' '); });
  for_all("removed", [](std::string& form) { form.clear(); });
  return forms;
}

void check_every_code_point(const BertNormalizer& normalize, const nlohmann::ordered_json& variant,
                            bool hangul_decomposed) {
  const std::vector<std::string> expected = expected_forms(variant);
  int wrong = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (hangul_decomposed && c >= 0xAC00 && c <= 0xD7A3) continue;
    const std::string found = normalize(utf8(c));
    if (found == expected[c]) continue;
    if (++wrong <= 5) {
      INFO("U+" << std::hex << static_cast<uint32_t>(c) << " became '" << found << "', not '"
                << expected[c] << "'");
      CHECK(false);
    }
  }
  CHECK(wrong == 0);
}

const nlohmann::ordered_json& unicode() {
  static const auto value = maxim::read_json("tests/golden/tokenizer_unicode.json");
  return value;
}

}  // namespace

TEST_CASE("normaliser: every code point, uncased") {
  const BertNormalizer normalize({});
  check_every_code_point(normalize, unicode()["uncased"], true);
  // Hangul syllables by the formula of Unicode 15, section 3.12.
  for (char32_t c = 0xAC00; c <= 0xD7A3; ++c) {
    const char32_t s = c - 0xAC00, last = s % 28;
    std::u32string parts{static_cast<char32_t>(0x1100 + s / 588),
                         static_cast<char32_t>(0x1161 + s % 588 / 28)};
    if (last != 0) parts += static_cast<char32_t>(0x11A7 + last);
    REQUIRE(normalize(utf8(c)) == utf8(parts));
  }
}

TEST_CASE("normaliser: every code point, cased") {
  check_every_code_point(BertNormalizer({.strip_accents = false, .lowercase = false}),
                         unicode()["cased"], false);
}

TEST_CASE("normaliser: the pre-tokenizer's class of every code point") {
  std::vector<maxim::CharacterClass> expected(0x110000, maxim::CharacterClass::kWord);
  const auto paint = [&](const char* key, maxim::CharacterClass value) {
    for (const auto& range : unicode()["pretokenizer"][key])
      for (char32_t c = range[0]; c <= range[1].get<char32_t>(); ++c) expected[c] = value;
  };
  paint("whitespace", maxim::CharacterClass::kSpace);
  paint("punctuation", maxim::CharacterClass::kPunctuation);
  for (char32_t c = 0; c < 0x110000; ++c)
    if (const auto found = maxim::character_class(c); found != expected[c]) {
      INFO("U+" << std::hex << uint32_t{c});
      REQUIRE(found == expected[c]);
    }
  CHECK(maxim::character_class('-') == maxim::CharacterClass::kPunctuation);
}

TEST_CASE("normaliser: the options, one by one") {
  const std::string text = utf8(U"É\x01\tÀ中İ");
  const auto with = [&](bool clean, bool chinese, bool strip, bool lower) {
    return BertNormalizer({clean, chinese, strip, lower})(text);
  };
  CHECK(with(false, false, false, false) == text);
  CHECK(with(true, false, false, false) == utf8(U"É À中İ"));
  CHECK(with(false, true, false, false) == utf8(U"É\x01\tÀ 中 İ"));
  CHECK(with(false, false, true, false) == utf8(U"E\x01\tA中I"));
  CHECK(with(false, false, false, true) == utf8(U"é\x01\tà中i\u0307"));
  CHECK(with(true, true, true, true) == utf8(U"e a 中 i"));
}

// Combining characters that stay, since they are no Mn of Unicode 8, are sorted by class: U+1D165
// has 216, U+1D16D 226, U+302E 224, U+08D4 230. What is removed between them does not stop that,
// unless it has class 0 (U+034F).
TEST_CASE("normaliser: canonical order") {
  const BertNormalizer normalize({});
  CHECK(normalize(utf8(U"a\U0001D16D\U0001D165b")) == utf8(U"a\U0001D165\U0001D16Db"));
  CHECK(normalize(utf8(U"\u08D4\u0301\u302E\u200B\U0001D165")) == utf8(U"\U0001D165\u302E\u08D4"));
  CHECK(normalize(utf8(U"\u08D4\u034F\u302E")) == utf8(U"\u08D4\u302E"));
  CHECK(normalize(utf8(U"\u08D4\U000E0100\u302E")) == utf8(U"\u08D4\u302E"));
  CHECK(normalize(utf8(U"\u08D4\u0F73\u302E")) == utf8(U"\u302E\u08D4"));
  CHECK(normalize(utf8(U"\u08D4 \u302E")) == utf8(U"\u08D4 \u302E"));
  // U+1D160 is a note head (class 0), a stem (216) and a flag (216).
  CHECK(normalize(utf8(U"\U0001D16D\U0001D160")) ==
        utf8(U"\U0001D16D\U0001D158\U0001D165\U0001D16E"));
  CHECK(normalize(utf8(U"\U0001D160\u302E\U0001D165")) ==
        utf8(U"\U0001D158\U0001D165\U0001D16E\U0001D165\u302E"));
}

// The examples of Unicode 15, table 3-8 and of the WHATWG Encoding Standard's tests.
TEST_CASE("normaliser: invalid UTF-8 is U+FFFD for each maximal subpart") {
  const BertNormalizer keep({false, false, false, false}), clean({});
  const std::string r = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
       "a" + r + r + r + "b" + r + "c" + r + r + "d"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", r + r + r + r + r + r + r + r + "A"},  // overlong
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", r + r + r + r + r + r + r + r + "A"},  // surrogates
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42",
       r + r + r + r + r + "A" + r + r + "B"},  // > U+10FFFF
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A"},
      {"\xC3", r},
      {"\xE4\xB8", r},
      {"\xF0\x9F\x98", r}};
  for (const auto& [bytes, expected] : cases) {
    CHECK(keep(bytes) == expected);
    std::string without = expected;
    for (size_t at; (at = without.find(r)) != without.npos;) without.erase(at, 3);
    for (char& c : without) c = static_cast<char>(std::tolower(c));
    CHECK(clean(bytes) == without);
  }
}

// Texts of everything that could go wrong at a cut, some bytes of them damaged.
TEST_CASE("normaliser: the parts on both sides of a safe cut make up the whole") {
  const std::u32string alphabet =
      U"ab C.\n\x01é\u0301\u034F\u200B中가\u08D4\u302E\U0001D165\U0001D160\U0001F600\u0F73豈";
  uint32_t count = 0;
  const auto random = [&](uint32_t n) { return maxim::philox(count++, 0, 0, 0, 5, 6).x[0] % n; };
  for (const bool strip : {true, false}) {
    const BertNormalizer normalize({.strip_accents = strip});
    for (int i = 0; i < 3000; ++i) {
      std::u32string text;
      for (uint32_t n = random(12); n > 0; --n) text += alphabet[random(alphabet.size())];
      std::string raw = utf8(text);
      if (i % 3 == 0 && !raw.empty()) raw[random(raw.size())] ^= static_cast<char>(1 << random(8));
      for (size_t at = 0; at <= raw.size(); ++at) {
        const size_t cut = normalize.safe_cut(raw, at);
        REQUIRE(cut <= at);
        REQUIRE(normalize(raw.substr(0, cut)) + normalize(raw.substr(cut)) == normalize(raw));
      }
      REQUIRE(normalize.safe_cut(raw, raw.size()) == raw.size());
    }
  }
  const BertNormalizer normalize({});
  CHECK(normalize.safe_cut("hello", 3) == 3);
  CHECK(normalize.safe_cut(utf8(U"中国人"), 4) == 3);
  CHECK(normalize.safe_cut(utf8(U"a\u0301\u0301\u0301b"), 6) == 0);  // not before a mark
}

TEST_CASE("normaliser: word characters and whitespace of single_word, lstrip and rstrip") {
  for (const char32_t c : U"a0_éß中\u0301\u0903\u200D\u203Fⓐ🅰\u1C89\U00016100\U000105C0")
    if (c != 0) CHECK(maxim::is_word_character(c));
  for (const char32_t c : U" -.\u00A0\u00B7\u2028€😀\uFFFD\U000E0001\U0010FFFF")
    if (c != 0) CHECK_FALSE(maxim::is_word_character(c));
  for (const char32_t c : {0x9, 0xB, 0x20, 0x85, 0xA0, 0x2029, 0x3000})
    CHECK(maxim::is_whitespace(c));
  for (const char32_t c : {0x8, 0x1C, 0x180E, 0x200B, 0xFEFF}) CHECK_FALSE(maxim::is_whitespace(c));
}

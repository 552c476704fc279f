#include "data/text_lines.h"

#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/data/files.h"
#include "tests/reference/temporary_directory.h"

using maxim::find_invalid_utf8;
using maxim::LineReader;
using maxim::strip;
using maxim::TextFileMap;
using maxim_tests::gzip;
using maxim_tests::input_error;
using maxim_tests::TemporaryDirectory;

namespace {

std::vector<std::string> lines_of(std::string_view text) {
  LineReader reader(text);
  std::vector<std::string> lines;
  for (std::string_view line; reader.next(line);) {
    lines.emplace_back(line);
    REQUIRE(reader.number() == static_cast<int64_t>(lines.size()));
    REQUIRE(text.substr(static_cast<size_t>(reader.begin()), line.size()) == line);
  }
  return lines;
}

// A code point as UTF-8, by the definition; surrogates and what lies beyond are encoded alike.
std::string utf8(uint32_t c) {
  const auto tail = [](uint32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(c)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(c >> 6), tail(c)};
  return {static_cast<char>(0xF0 | c >> 18), tail(c >> 12), tail(c >> 6), tail(c)};
}

}  // namespace

TEST_CASE("text_lines: LF alone ends a line") {
  CHECK(lines_of("").empty());
  CHECK(lines_of("\n") == std::vector<std::string>{""});
  CHECK(lines_of("a") == std::vector<std::string>{"a"});
  CHECK(lines_of("a\n\nb") == std::vector<std::string>{"a", "", "b"});
  CHECK(lines_of("a\r\nb\r\r\n\r\n") == std::vector<std::string>{"a", "b\r", ""});
  CHECK(lines_of("a\rb\v\f\xC2\x85\xE2\x80\xA8z\n") ==
        std::vector<std::string>{"a\rb\v\f\xC2\x85\xE2\x80\xA8z"});
  CHECK(lines_of(std::string_view("a\0b\nc", 5)).front() == std::string("a\0b", 3));
  LineReader reader("one\ntwo\n", 4);
  std::string_view line;
  REQUIRE(reader.next(line));
  CHECK(line == "two");
  CHECK_FALSE(reader.next(line));
}

TEST_CASE("text_lines: byte order mark and gzip, whatever the name") {
  const TemporaryDirectory directory;
  const auto text_of = [&](std::string_view bytes) {
    return std::string(TextFileMap(directory.write("file.txt", bytes)).text());
  };
  CHECK(text_of("") == "");
  CHECK(text_of("\xEF\xBB\xBFtext") == "text");
  CHECK(text_of(gzip("")) == "");
  CHECK(text_of(gzip("\xEF\xBB\xBFone\ntwo\n")) == "one\ntwo\n");
  std::string large;  // several pieces of the unpacker, in and out
  for (uint32_t i = 0; large.size() < 3'000'000; ++i) large += std::to_string(i * 2654435761u);
  REQUIRE(gzip(large).size() > (1 << 18));
  CHECK(text_of(gzip(large)) == large);
  CHECK(text_of(gzip(std::string(1 << 20, 'x'))) == std::string(1 << 20, 'x'));
  CHECK(text_of(gzip("one\n") + gzip("") + gzip("two\n")) == "one\ntwo\n");
  CHECK(text_of(gzip("one\n") + std::string(1000, '\0')) == "one\n");
}

TEST_CASE("text_lines: gzip that is cut off or damaged") {
  const TemporaryDirectory directory;
  const auto error_of = [&](std::string_view bytes) {
    const std::string path = directory.write("file.gz", bytes);
    return input_error([&] { TextFileMap file(path); });
  };
  const std::string packed = gzip("some text, some text, some more text\n");
  for (size_t length = 2; length < packed.size(); ++length) {
    const std::string error = error_of(packed.substr(0, length));
    CAPTURE(length, error);
    CHECK(error.find("cut off after " + std::to_string(length) + " bytes") != std::string::npos);
  }
  for (const size_t at : {2, 3, 14, static_cast<int>(packed.size()) - 1}) {
    std::string damaged = packed;
    damaged[at] ^= 0x7C;
    CAPTURE(at);
    CHECK(error_of(damaged).find("gzip data is damaged at byte") != std::string::npos);
  }
  CHECK(error_of(packed + "tail").find("gzip data is damaged") != std::string::npos);
  CHECK(error_of(packed + packed.substr(0, 5)).find("cut off") != std::string::npos);
}

TEST_CASE("text_lines: other formats are named") {
  using namespace std::string_literals;
  const TemporaryDirectory directory;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xFF\xFE{\0\"\0"s, "UTF-16 (little-endian)"},
      {"\xFE\xFF\0{\0\""s, "UTF-16 (big-endian)"},
      {"{\0\"\0q\0\n\0"s, "UTF-16 (little-endian)"},
      {"\0{\0\"\0q\0\n"s, "UTF-16 (big-endian)"},
      {"\xFF\xFE\0\0{\0\0\0"s, "UTF-32 (little-endian)"},
      {"\0\0\xFE\xFF\0\0\0{"s, "UTF-32 (big-endian)"},
      {"PAR1\x15\x04"s, "Parquet"},
      {"PK\3\4\x14"s, "zip"},
      {"\x28\xB5\x2F\xFD\x04"s, "zstd"},
      {"\xFD\x37zXZ\0"s, "xz"},
      {"BZh91AY"s, "bzip2"},
      {"version https://git-lfs.github.com/spec/v1\n"s, "Git LFS pointer"},
  };
  for (const auto& [bytes, name] : cases)
    for (const std::string& content : {bytes, gzip(bytes)}) {
      const std::string path = directory.write("file.jsonl", content);
      const std::string error = input_error([&] { TextFileMap file(path); });
      CAPTURE(error);
      CHECK(error.find(path) == 0);
      CHECK(error.find(name) != std::string::npos);
    }
  CHECK(input_error([&] { TextFileMap file(directory.path()); }).find("not a regular file") !=
        std::string::npos);
  CHECK(input_error([&] { TextFileMap file(directory.file("none")); }).find("cannot be opened") !=
        std::string::npos);
}

TEST_CASE("text_lines: UTF-8 is judged code point by code point") {
  for (uint32_t c = 0; c < 0x120000; c += c < 0x3000 || c > 0xD000 ? 1 : 97) {
    const bool valid = (c < 0xD800 || c > 0xDFFF) && c <= 0x10FFFF;
    // Nine bytes before it, so that the eight-byte step is over.
    const int64_t found = find_invalid_utf8("123456789" + utf8(c) + "12345678");
    if (found != (valid ? -1 : 9)) FAIL("code point " << c << ": " << found);
  }
  // Overlong, lone, cut-off and impossible bytes, at every distance from the eight-byte step.
  for (const std::string bad :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x80\x80\x80",
        "\xF0\x8F\xBF\xBF", "\x80", "\xBF", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xF8\x88\x80\x80",
        "\xFE", "\xFF", "\xF4\x90\x80\x80"})
    for (size_t before = 0; before < 18; ++before)
      for (const size_t after : {0, 1, 9}) {
        const std::string text = std::string(before, 'a') + bad + std::string(after, 'z');
        if (find_invalid_utf8(text) != static_cast<int64_t>(before))
          FAIL(text << " of " << before << ", " << after << ": " << find_invalid_utf8(text));
      }
  CHECK(find_invalid_utf8("") == -1);
}

TEST_CASE("text_lines: strip takes what Python's str.strip() takes") {
  // [c for c in range(0x110000) if chr(c).isspace()] of Python 3.11.
  const std::set<uint32_t> blanks = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x1C,   0x1D,   0x1E,
                                     0x1F,   0x20,   0x85,   0xA0,   0x1680, 0x2000, 0x2001, 0x2002,
                                     0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A,
                                     0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string one = utf8(c), text = one + "a" + one + "b" + one;
    const std::string want = blanks.contains(c) ? "a" + one + "b" : text;
    if (strip(text) != want) FAIL("code point " << c);
    if (strip(one).empty() != blanks.contains(c)) FAIL("alone: code point " << c);
  }
  CHECK(strip("") == "");
  CHECK(strip(" \t\xC2\xA0 \xE3\x80\x80") == "");
  CHECK(strip("\xC2\xA0 a b\xE2\x80\xA9\r\n") == "a b");
  CHECK(strip("\xFF a \x80") == "\xFF a \x80");  // bytes that are no text stay
  CHECK(strip("a\xC2") == "a\xC2");
}

TEST_CASE("text_lines: an excerpt ends between characters") {
  CHECK(maxim::excerpt("abc", 3) == "abc");
  CHECK(maxim::excerpt("abcd", 3) == "abc…");
  CHECK(maxim::excerpt("ab\xE2\x82\xAC", 4) == "ab…");
  CHECK(maxim::excerpt("ab\xE2\x82\xAC", 5) == "ab\xE2\x82\xAC");
  CHECK(maxim::excerpt("a\tb\n", 9) == "a?b?");
  CHECK(maxim::excerpt("a\x80\xE2\x82z", 9) == "a???z");
  CHECK(maxim::excerpt("\x80\x80", 1) == "?…");
  CHECK(maxim::excerpt("a", 0) == "…");
}

// Text files as lines, the ground under training_data and beir: the file is mapped, gzip (known by
// its first two bytes, whatever the name) is unpacked into an unlinked temporary file that is
// mapped instead, a UTF-8 byte order mark is dropped, and LF alone ends a line. U+2028, U+0085, NUL
// and a CR inside a line are text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/files.h"

namespace maxim {

class TextFileMap {
 public:
  // Throws InputError naming the file and, for UTF-16 or UTF-32, a zip, Parquet, zstd, xz or bzip2
  // file or a Git LFS pointer, what it is; for gzip that is cut off or damaged, the byte where.
  // Unpacking needs room in $TMPDIR (else /tmp): Error when it is full.
  explicit TextFileMap(const std::string& path);
  const std::string& path() const { return path_; }
  std::string_view text() const { return text_; }  // of the map, without the byte order mark

 private:
  std::string path_;
  MappedFile file_;
  std::string_view text_;
};

// Lines of `text` from a byte on, which must begin a line. The last line may lack its LF.
class LineReader {
 public:
  explicit LineReader(std::string_view text, int64_t begin = 0)
      : text_(text), next_(static_cast<size_t>(begin)) {}
  // The next line without its LF and without one CR before it; false at the end.
  bool next(std::string_view& line);
  int64_t number() const { return number_; }  // of the last line read; from `begin`, starting at 1
  int64_t begin() const { return static_cast<int64_t>(begin_); }  // its first byte

 private:
  std::string_view text_;
  size_t next_ = 0, begin_ = 0;
  int64_t number_ = 0;
};

// The first byte that is not valid UTF-8 (overlong forms and surrogates are not), or -1.
int64_t find_invalid_utf8(std::string_view text);

// What Python's str.strip() leaves: blanks are the characters of category Zs or of bidirectional
// class WS, B or S.
std::string_view strip(std::string_view text);

// `text` for a message: at most `limit` bytes of it, cut between characters, "…" where something
// was cut off; control characters and bytes that are not UTF-8 as "?".
std::string excerpt(std::string_view text, size_t limit);

}  // namespace maxim

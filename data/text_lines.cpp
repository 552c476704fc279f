#include "data/text_lines.h"

#include <fcntl.h>
#include <unistd.h>
#include <utf8proc.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/error.h"

namespace maxim {
namespace {

constexpr size_t kUnpackBytes = 1 << 18;  // 256 KiB pieces: stay in L2, few write calls

// A temporary file that no name leads to, so that it vanishes with the process, however that ends.
class UnlinkedFile {
 public:
  UnlinkedFile() {
    name_ = (std::filesystem::temp_directory_path() / "maxim-XXXXXX").string();
    descriptor_ = mkostemp(name_.data(), O_CLOEXEC);
    if (descriptor_ < 0)
      fail("{}: cannot be created: {} (set TMPDIR to a directory with room)", name_,
           std::strerror(errno));
    unlink(name_.c_str());
  }
  ~UnlinkedFile() { close(descriptor_); }
  UnlinkedFile(const UnlinkedFile&) = delete;

  void write(const unsigned char* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_, data, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0)
        fail("{}: write failed: {} (set TMPDIR to a directory with room)", name_,
             std::strerror(errno));
      data += written;
      bytes -= static_cast<size_t>(written);
    }
  }
  MappedFile map() const { return MappedFile("/proc/self/fd/" + std::to_string(descriptor_)); }

 private:
  std::string name_;
  int descriptor_ = -1;
};

struct Inflater {
  z_stream stream{};
  Inflater() {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) fail("zlib: no memory");  // 15 + 16: gzip only
  }
  ~Inflater() { inflateEnd(&stream); }
};

// gzip's own rules: members follow one another, zeros after the last are padding.
MappedFile unpack(const std::string& path, std::string_view packed) {
  UnlinkedFile out;
  Inflater inflater;
  z_stream& z = inflater.stream;
  std::vector<unsigned char> buffer(kUnpackBytes);
  auto* data = reinterpret_cast<const unsigned char*>(packed.data());
  size_t used = 0;
  while (used < packed.size()) {
    const size_t piece = std::min(packed.size() - used, kUnpackBytes);
    z.next_in = const_cast<unsigned char*>(data + used);
    z.avail_in = static_cast<uInt>(piece);
    z.next_out = buffer.data();
    z.avail_out = static_cast<uInt>(buffer.size());
    const int result = inflate(&z, Z_NO_FLUSH);
    used += piece - z.avail_in;
    out.write(buffer.data(), buffer.size() - z.avail_out);
    if (result == Z_STREAM_END) {
      if (packed.find_first_not_of('\0', used) == std::string_view::npos) return out.map();
      inflateReset(&z);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail_input("{}: gzip data is damaged at byte {}: {}", path, used,
                 z.msg != nullptr ? z.msg : "unknown format");
    }
  }
  fail_input("{}: gzip data is cut off after {} bytes: the download or copy is not whole", path,
             packed.size());
}

// Refuses what cannot be read as UTF-8 lines, by the first bytes, with a hint.
void refuse_other_formats(const std::string& path, std::string_view text) {
  using namespace std::string_view_literals;
  static constexpr struct {
    std::string_view magic;
    const char* what;
  } kFormats[] = {
      {"\0\0\xFE\xFF"sv, "UTF-32 (big-endian) text: convert it with iconv -f UTF-32 -t UTF-8"},
      {"\xFF\xFE\0\0"sv, "UTF-32 (little-endian) text: convert it with iconv -f UTF-32 -t UTF-8"},
      {"\xFE\xFF"sv, "UTF-16 (big-endian) text: convert it with iconv -f UTF-16 -t UTF-8"},
      {"\xFF\xFE"sv, "UTF-16 (little-endian) text: convert it with iconv -f UTF-16 -t UTF-8"},
      {"PAR1"sv, "a Parquet file: convert it to JSON lines"},
      {"PK\3\4"sv, "a zip file: unpack it first"},
      {"\x28\xB5\x2F\xFD"sv, "zstd-compressed: unpack it first (gzip is read as it is)"},
      {"\xFD"
       "7zXZ"sv,
       "xz-compressed: unpack it first (gzip is read as it is)"},
      {"BZh"sv, "bzip2-compressed: unpack it first (gzip is read as it is)"},
      {"version https://git-lfs"sv, "a Git LFS pointer, not the data: run git lfs pull"},
  };
  for (const auto& format : kFormats)
    if (text.starts_with(format.magic)) fail_input("{}: this is {}", path, format.what);
  // UTF-16 without a mark: every second byte of ASCII text is zero.
  const size_t pairs = std::min<size_t>(text.size() / 2, 16);
  size_t zeros[2] = {0, 0};
  for (size_t i = 0; i < 2 * pairs; ++i) zeros[i % 2] += text[i] == '\0';
  if (pairs >= 2 && zeros[0] + zeros[1] == pairs && (zeros[0] == 0 || zeros[1] == 0))
    fail_input("{}: this seems to be UTF-16 ({}-endian) text: convert it with iconv to UTF-8", path,
               zeros[0] == 0 ? "little" : "big");
}

int32_t decode(std::string_view text, size_t at, size_t& bytes) {
  utf8proc_int32_t code = -1;
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  const auto used = utf8proc_iterate(p, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  bytes = used > 0 ? static_cast<size_t>(used) : 0;
  return code;
}

bool is_blank(int32_t code) {
  if (code < 0) return false;
  const utf8proc_property_t* property = utf8proc_get_property(code);
  return property->category == UTF8PROC_CATEGORY_ZS ||
         property->bidi_class == UTF8PROC_BIDI_CLASS_WS ||
         property->bidi_class == UTF8PROC_BIDI_CLASS_B ||
         property->bidi_class == UTF8PROC_BIDI_CLASS_S;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

TextFileMap::TextFileMap(const std::string& path) : path_(path), file_(path) {
  if (file_.text().starts_with("\x1F\x8B")) file_ = unpack(path, file_.text());
  text_ = file_.text();
  if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  refuse_other_formats(path, text_);
}

bool LineReader::next(std::string_view& line) {
  if (next_ >= text_.size()) return false;
  begin_ = next_;
  const size_t end = std::min(text_.find('\n', begin_), text_.size());
  next_ = end + 1;
  ++number_;
  line = text_.substr(begin_, end - begin_);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return true;
}

int64_t find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word = 0;  // eight ASCII bytes at a time
    if (i + 8 <= text.size()) std::memcpy(&word, text.data() + i, 8);
    if (i + 8 <= text.size() && (word & 0x8080808080808080u) == 0) {
      i += 8;
    } else {
      size_t bytes = 0;
      decode(text, i, bytes);
      if (bytes == 0) return static_cast<int64_t>(i);
      i += bytes;
    }
  }
  return -1;
}

std::string_view strip(std::string_view text) {
  size_t bytes = 0;
  while (!text.empty() && is_blank(decode(text, 0, bytes))) text.remove_prefix(bytes);
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && text.size() - last < 4 && is_continuation(text[last])) --last;
    if (!is_blank(decode(text, last, bytes)) || last + bytes != text.size()) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::string excerpt(std::string_view text, size_t limit) {
  std::string result;
  size_t i = 0, bytes = 0;
  while (i < text.size()) {
    const int32_t code = decode(text, i, bytes);
    if (i + std::max<size_t>(bytes, 1) > limit) return result + "…";
    const bool shown = bytes > 0 && code >= 0x20 && code != 0x7F;
    result += shown ? text.substr(i, bytes) : "?";
    i += std::max<size_t>(bytes, 1);
  }
  return result;
}

}  // namespace maxim

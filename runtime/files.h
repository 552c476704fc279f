// Files: mapped reads, synced writes, whole-or-not-at-all directories.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace maxim {

// A read-only map of a whole file. Throws InputError naming the path (missing, a directory, not
// readable).
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)};
  }
  // Gives the memory of the pages read so far back to the system; reading again maps them again.
  void release_pages() const;

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// A file being written. Every failed call (disk full, …) throws Error naming the path and the
// reason.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  void write(const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  void flush();
  void finish();  // flush, fsync, close

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

std::string read_text(const std::string& path);                   // InputError
void write_text(const std::string& path, std::string_view text);  // synced
nlohmann::ordered_json read_json(const std::string& path);  // InputError naming file and position
void write_json(const std::string& path, const nlohmann::ordered_json& value);  // indented by 2

bool file_exists(const std::string& path);
void make_directories(const std::string& path);
void sync_directory(const std::string& path);

// A directory that appears whole or not at all: made under a temporary name beside `path`, renamed
// to it by commit() after everything in it is synced. Without commit() it is removed. An existing
// `path` is replaced.
class StagedDirectory {
 public:
  explicit StagedDirectory(const std::string& path);
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  const std::string& staging() const { return staging_; }
  void commit();

 private:
  std::string path_, staging_;
  bool committed_ = false;
};

}  // namespace maxim

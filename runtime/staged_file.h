// A result file that appears whole or not at all, and whose place is checked before the work that
// fills it.
#pragma once

#include <string>

namespace maxim {

class StagedFile {
 public:
  // Creates an empty file under a temporary name beside `path`. Throws InputError when that fails
  // (no such directory, not allowed) or `path` is a directory: a typo is known before hours of
  // work.
  explicit StagedFile(const std::string& path);
  ~StagedFile();  // removes the temporary file unless it was committed
  StagedFile(const StagedFile&) = delete;
  const std::string& staging() const { return staging_; }  // write (and sync) here
  // Renames to `path`, replacing what was there. Throws Error when that fails.
  void commit();

 private:
  std::string path_, staging_;
  bool committed_ = false;
};

}  // namespace maxim

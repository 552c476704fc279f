// A result file that appears whole or not at all, and whose place is checked before the work that
// fills it.
#pragma once

#include <string>

namespace maxim {

class StagedFile {
 public:
  // Creates an empty file, path.partial, and locks it. A symbolic link is followed: its target is
  // what gets replaced. Throws InputError when that fails (no such directory, not allowed), when
  // another job is writing it, and when `path` is there but no regular file (a directory, a device,
  // a pipe): a typo is known before hours of work, and a device is never replaced by a file.
  explicit StagedFile(const std::string& path);
  ~StagedFile();  // removes the temporary file unless it was committed
  StagedFile(const StagedFile&) = delete;
  const std::string& staging() const { return staging_; }  // write (and sync) here
  // Renames to `path`, replacing what was there. Throws Error when that fails.
  void commit();

 private:
  std::string path_, staging_;
  int lock_ = -1;
  bool committed_ = false;
};

}  // namespace maxim

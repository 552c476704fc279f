#include "runtime/staged_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "runtime/error.h"
#include "runtime/files.h"

namespace maxim {

StagedFile::StagedFile(const std::string& path) : path_(path), staging_(path + ".partial") {
  if (path.empty()) fail_input("the output file has no name");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    fail_input("{}: is a directory, a file is to be written here", path);
  std::FILE* file = std::fopen(staging_.c_str(), "wbe");
  if (file == nullptr) fail_input("{}: cannot be written: {}", staging_, std::strerror(errno));
  std::fclose(file);
}

StagedFile::~StagedFile() {
  if (!committed_) std::remove(staging_.c_str());
}

void StagedFile::commit() {
  if (std::rename(staging_.c_str(), path_.c_str()) != 0)
    fail("{}: cannot be renamed to {}: {}", staging_, path_, std::strerror(errno));
  committed_ = true;
  const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
  sync_directory(parent.empty() ? "." : parent.string());
}

}  // namespace maxim

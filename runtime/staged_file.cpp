#include "runtime/staged_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "runtime/error.h"
#include "runtime/files.h"

namespace fs = std::filesystem;

namespace maxim {
namespace {

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Where `path` leads to, which does not exist or is a regular file.
std::string resolve(const std::string& path) {
  if (path.empty()) fail_input("the output file has no name");
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  if (error) fail_input("{}: cannot be written: {}", path, error.message());
  const fs::file_type type = fs::symlink_status(target, error).type();  // a link: it leads nowhere
  if (type == fs::file_type::directory)
    fail_input("{}: is a directory, a file is to be written here", path);
  if (type != fs::file_type::regular && type != fs::file_type::not_found)
    fail_input("{}: exists and is not a regular file, so it is not replaced", path);
  struct stat out {
  }, file{};
  if (fstat(STDOUT_FILENO, &out) == 0 && stat(target.c_str(), &file) == 0 && same_file(out, file))
    fail_input("{}: standard output goes there already", path);
  return target;
}

// Opens `path` with the lock on it, which the system drops with the process.
int open_locked(const std::string& path) {
  while (true) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) fail_input("{}: cannot be written: {}", path, std::strerror(errno));
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const std::string reason =
          errno == EWOULDBLOCK ? "another running job writes it" : std::strerror(errno);
      close(descriptor);
      fail_input("{}: cannot be locked: {}", path, reason);
    }
    struct stat ours {
    }, named{};
    if (fstat(descriptor, &ours) == 0 && stat(path.c_str(), &named) == 0 && same_file(ours, named))
      return descriptor;
    close(descriptor);  // another job finished and renamed it in between
  }
}

}  // namespace

StagedFile::StagedFile(const std::string& path)
    : path_(resolve(path)), staging_(path_ + ".partial"), lock_(open_locked(staging_)) {}

StagedFile::~StagedFile() {
  if (!committed_) std::remove(staging_.c_str());
  close(lock_);
}

void StagedFile::commit() {
  if (std::rename(staging_.c_str(), path_.c_str()) != 0)
    fail("{}: cannot be renamed to {}: {}", staging_, path_, std::strerror(errno));
  committed_ = true;
  const fs::path parent = fs::path(path_).parent_path();
  sync_directory(parent.empty() ? "." : parent.string());
}

}  // namespace maxim

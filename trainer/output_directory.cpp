#include "trainer/output_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/error.h"
#include "runtime/files.h"

namespace fs = std::filesystem;

namespace maxim {
namespace {

constexpr const char* kLockName = ".lock";
constexpr const char* kFinalName = ".final.partial";
constexpr const char* kPartial = ".partial";

// Takes the lock of a directory, which lasts as long as the process, and writes the owner into it.
int take_lock(const std::string& directory) {
  const std::string path = directory + "/" + kLockName;
  const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0)
    fail_input("--output_dir {}: cannot be written: {}", directory, std::strerror(errno));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const bool held = errno == EWOULDBLOCK;
    char owner[128] = {};
    if (held && read(lock, owner, sizeof owner - 1) < 0) owner[0] = 0;
    const std::string reason = std::strerror(errno);
    close(lock);
    if (held)
      fail_input("--output_dir {}: another running job writes there ({})", directory, owner);
    fail_input("--output_dir {}: cannot be locked: {}", directory, reason);
  }
  char host[64] = {};
  gethostname(host, sizeof host - 1);
  const std::string owner = fmt::format("process {} on {}", getpid(), host);
  if (ftruncate(lock, 0) != 0 ||
      write(lock, owner.data(), owner.size()) != static_cast<ssize_t>(owner.size())) {
    const std::string reason = std::strerror(errno);
    close(lock);
    fail_input("--output_dir {}: cannot be written: {}", directory, reason);
  }
  return lock;
}

// The first file that an earlier run or somebody else left, or "".
std::string first_foreign_file(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (entry.path().filename() != kLockName) return entry.path().filename();
  if (error) fail_input("--output_dir {}: cannot be read: {}", directory, error.message());
  return "";
}

// Renamed first, so that a run that is killed leaves no half of it under its name.
void remove_whole(const std::string& directory) {
  std::error_code error;
  fs::remove_all(directory + kPartial, error);
  if (!error) fs::rename(directory, directory + kPartial, error);
  if (!error) fs::remove_all(directory + kPartial, error);
  if (error) fail("{}: cannot be removed: {}", directory, error.message());
}

// What runs that were killed were writing, replacing or removing.
void remove_leftovers(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (name == kFinalName || (name.starts_with("checkpoint-") &&
                               (name.ends_with(kPartial) || name.ends_with(".replaced"))))
      leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers)
    if (!error) fs::remove_all(path, error);
  if (error) fail_input("--output_dir {}: cannot be cleaned: {}", directory, error.message());
}

}  // namespace

OutputDirectory::OutputDirectory(const std::string& path, bool overwrite) : path_(path) {
  std::error_code error;
  created_ = fs::create_directories(path, error);
  if (error || !fs::is_directory(path))
    fail_input("--output_dir {}: cannot be created: {}", path,
               error ? error.message() : "not a directory");
  lock_ = take_lock(path);
  const std::string file = overwrite ? "" : first_foreign_file(path);
  if (!file.empty()) {
    close(lock_);
    fail_input(
        "--output_dir {}: not empty (it holds {}); choose another or pass "
        "--overwrite_output_dir",
        path, file);
  }
  remove_leftovers(path);
}

OutputDirectory::~OutputDirectory() {
  // Removed while still locked, so that no other job can have taken it.
  unlink((path_ + "/" + kLockName).c_str());
  if (created_) rmdir(path_.c_str());  // which fails unless nothing was written
  close(lock_);
}

std::string OutputDirectory::checkpoint(int64_t step) const {
  return fmt::format("{}/checkpoint-{}", path_, step);
}

void OutputDirectory::save_checkpoint(int64_t step, int64_t limit, int64_t keep,
                                      const std::function<void(const std::string&)>& write) {
  if (std::find(checkpoints_.begin(), checkpoints_.end(), step) != checkpoints_.end()) return;
  StagedDirectory staged(checkpoint(step));
  write(staged.staging());
  staged.commit();
  checkpoints_.push_back(step);
  while (limit > 0 && static_cast<int64_t>(checkpoints_.size()) > limit) {
    const auto oldest = std::find_if(checkpoints_.begin(), checkpoints_.end() - 1,
                                     [&](int64_t s) { return s != keep; });
    if (oldest == checkpoints_.end() - 1) break;
    remove_whole(checkpoint(*oldest));
    checkpoints_.erase(oldest);
  }
}

void OutputDirectory::save_final(const std::function<void(const std::string&)>& write) {
  const fs::path staging = fs::path(path_) / kFinalName;
  fs::remove_all(staging);
  make_directories(staging);
  write(staging);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(staging)) {
    const fs::path relative = fs::relative(entry.path(), staging);
    if (entry.is_directory())
      make_directories(path_ / relative);
    else
      files.push_back(relative);
  }
  for (const fs::path& file : files) {
    std::error_code error;
    fs::rename(staging / file, path_ / file, error);
    if (error)
      fail("{}: cannot be renamed into place: {}", (staging / file).string(), error.message());
  }
  for (const fs::path& file : files) sync_directory((path_ / file).parent_path());
  fs::remove_all(staging);
}

}  // namespace maxim

#include "runtime/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "runtime/error.h"

namespace maxim {

namespace {

// A mapped file that somebody cuts short while it is read ends in SIGBUS. The signal comes from our
// own reading, outside of any library call, so the handler may look up and print the file's name.
void report_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  std::ifstream maps("/proc/self/maps");
  std::string line, name = "memory";
  while (std::getline(maps, line)) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    const size_t path = line.find('/');
    if (begin <= address && address < end && path != std::string::npos) name = line.substr(path);
  }
  std::fprintf(stderr, "error: %s: the file was cut short while it was being read\n", name.c_str());
  _exit(1);
}

void install_bus_error_handler() {
  struct sigaction action {};
  action.sa_sigaction = report_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  [[maybe_unused]] static const bool installed = (install_bus_error_handler(), true);
  // O_NONBLOCK: a pipe that nobody writes to is refused below instead of waited for.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    close(descriptor);
    fail_input("{}: not a regular file", path);
  }
  size_ = status.st_size;
  void* map = nullptr;
  if (size_ > 0) map = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  close(descriptor);
  if (map == MAP_FAILED) fail_input("{}: cannot be mapped: {}", path, std::strerror(error));
  data_ = static_cast<const std::byte*>(map);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release_pages() const {
  if (data_ != nullptr) madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

OutputFile::OutputFile(const std::string& path)
    : path_(path), file_(std::fopen(path.c_str(), "wbe")) {
  if (file_ == nullptr) fail("{}: cannot be written: {}", path, std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void OutputFile::write(const void* data, int64_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != static_cast<size_t>(bytes))
    fail("{}: write failed: {}", path_, std::strerror(errno));
}

void OutputFile::flush() {
  if (std::fflush(file_) != 0) fail("{}: write failed: {}", path_, std::strerror(errno));
}

void OutputFile::finish() {
  flush();
  // EINVAL: something that cannot be synced, such as a pipe.
  if (fsync(fileno(file_)) != 0 && errno != EINVAL)
    fail("{}: sync failed: {}", path_, std::strerror(errno));
  if (std::fclose(std::exchange(file_, nullptr)) != 0)
    fail("{}: close failed: {}", path_, std::strerror(errno));
}

std::string read_text(const std::string& path) { return std::string(MappedFile(path).text()); }

void write_text(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.finish();
}

nlohmann::ordered_json read_json(const std::string& path) {
  const MappedFile file(path);
  try {
    return nlohmann::ordered_json::parse(file.text());
  } catch (const nlohmann::json::exception& e) {
    fail_input("{}: not valid JSON: {}", path, e.what());
  }
}

void write_json(const std::string& path, const nlohmann::ordered_json& value) {
  write_text(path,
             value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("{}: cannot be created: {}", path, error.message());
}

void sync_directory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("{}: cannot be opened: {}", path, std::strerror(errno));
  const int result = fsync(descriptor);
  const int error = errno;
  close(descriptor);
  if (result != 0 && error != EINVAL) fail("{}: sync failed: {}", path, std::strerror(error));
}

StagedDirectory::StagedDirectory(const std::string& path)
    : path_(path), staging_(path + ".partial") {
  std::filesystem::remove_all(staging_);  // of a run that was killed
  make_directories(staging_);
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;  // a destructor cannot report; the next run removes what is left
  if (!committed_) std::filesystem::remove_all(staging_, ignored);
}

void StagedDirectory::commit() {
  namespace fs = std::filesystem;
  for (const auto& entry : fs::recursive_directory_iterator(staging_))
    if (entry.is_directory()) sync_directory(entry.path());
  sync_directory(staging_);
  std::error_code error;
  const std::string old = path_ + ".replaced";
  fs::remove_all(old);
  if (fs::exists(path_)) fs::rename(path_, old, error);
  if (!error) fs::rename(staging_, path_, error);
  if (error) fail("{}: cannot be renamed to {}: {}", staging_, path_, error.message());
  committed_ = true;
  const fs::path parent = fs::path(path_).parent_path();
  sync_directory(parent.empty() ? "." : parent.string());
  fs::remove_all(old);
}

}  // namespace maxim

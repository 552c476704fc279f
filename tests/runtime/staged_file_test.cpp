#include "runtime/staged_file.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "runtime/error.h"
#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/reference/message_of.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim;
using maxim_tests::require_message;
using maxim_tests::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

void stage(const std::string& path, const std::string& text) {
  StagedFile file(path);
  write_text(file.staging(), text);
  file.commit();
}

}  // namespace

TEST_CASE("a staged file appears whole or not at all", "[staged_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("out", "old");
  { const StagedFile abandoned(path); }
  CHECK(read_text(path) == "old");
  stage(path, "new");
  CHECK(read_text(path) == "new");
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("what is no regular file is refused and stays", "[staged_file]") {
  const TemporaryDirectory directory;
  const std::string pipe = directory.file("pipe"), device = directory.file("null");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  require_message<InputError>([&] { StagedFile{pipe}; }, {pipe, "not a regular file"});
  CHECK(fs::is_fifo(pipe));
  if (mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {  // where the system lets us
    require_message<InputError>([&] { StagedFile{device}; }, {device, "not a regular file"});
    CHECK(fs::is_character_file(device));
  }
  require_message<InputError>([&] { StagedFile{directory.path()}; }, {"is a directory"});
  require_message<InputError>([&] { StagedFile{directory.file("no/such/place")}; },
                              {"No such file"});
  require_message<InputError>([&] { StagedFile{""}; }, {"no name"});
}

TEST_CASE("a symbolic link stays and its target is replaced", "[staged_file]") {
  const TemporaryDirectory directory;
  const std::string target = directory.write("target", "old"), link = directory.file("link");
  fs::create_symlink("target", link);
  stage(link, "new");
  CHECK(fs::is_symlink(link));
  CHECK(read_text(target) == "new");
  fs::remove(target);
  require_message<InputError>([&] { StagedFile{link}; }, {link, "not a regular file"});
}

TEST_CASE("two jobs cannot write one file at a time", "[staged_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out");
  auto first = std::make_unique<StagedFile>(path);
  require_message<InputError>([&] { StagedFile{path}; }, {path, "another running job"});
  write_text(first->staging(), "first");
  first->commit();
  stage(path, "second");  // the name of the committed file's lock is free again
  first.reset();
  CHECK(read_text(path) == "second");
}

TEST_CASE("a staged file may be named without a directory", "[files]") {
  const TemporaryDirectory temporary;
  const fs::path before = fs::current_path();
  fs::current_path(temporary.path());
  CHECK_NOTHROW(stage("bare", "text"));
  fs::current_path(before);
  CHECK(read_text(temporary.file("bare")) == "text");
}

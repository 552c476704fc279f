#include "runtime/files.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/reference/message_of.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim;
using maxim_tests::require_message;
using maxim_tests::TemporaryDirectory;

TEST_CASE("mapped files: text, empty, missing, directory", "[files]") {
  const TemporaryDirectory directory;
  const std::string text("a\0b\n", 4);
  const MappedFile file(directory.write("text", text));
  CHECK(file.text() == text);
  CHECK(file.size() == 4);
  MappedFile empty(directory.write("empty", ""));
  CHECK(empty.size() == 0);
  CHECK(empty.text().empty());
  empty = MappedFile(directory.file("text"));
  CHECK(empty.text() == text);
  const std::string missing = directory.file("missing");
  require_message<InputError>([&] { MappedFile{missing}; }, {missing, "No such file"});
  require_message<InputError>([&] { MappedFile{directory.path()}; },
                              {directory.path(), "not a regular file"});
  const std::string pipe = directory.file("pipe");  // that nobody writes to
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  require_message<InputError>([&] { MappedFile{pipe}; }, {pipe, "not a regular file"});
}

TEST_CASE("written text comes back; what cannot be written names the path", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("out");
  OutputFile file(path);
  file.write("one ");
  file.write("two", 3);
  file.finish();
  CHECK(read_text(path) == "one two");
  const std::string nowhere = directory.file("no/such/directory");
  require_message<Error>([&] { OutputFile{nowhere}; }, {nowhere, "No such file"});
  OutputFile full("/dev/full");  // every flush says that the disk is full
  full.write("x");
  require_message<Error>([&] { full.flush(); }, {"/dev/full", "No space left"});
}

TEST_CASE("JSON comes back in order; broken JSON names the file and the place", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.json");
  const auto value = nlohmann::ordered_json::parse(R"({"z": 1, "a": [true, null, "ä"]})");
  write_json(path, value);
  CHECK(read_text(path) == "{\n  \"z\": 1,\n  \"a\": [\n    true,\n    null,\n    \"ä\"\n  ]\n}\n");
  CHECK(read_json(path) == value);
  const std::string broken = directory.write("broken.json", "{\"a\":\n 1,}");
  require_message<InputError>([&] { read_json(broken); }, {broken, "line 2"});
}

TEST_CASE("a staged directory appears whole or not at all", "[files]") {
  namespace fs = std::filesystem;
  const TemporaryDirectory directory;
  const std::string path = directory.file("checkpoint");
  {
    const StagedDirectory abandoned(path);
    write_text(abandoned.staging() + "/a", "1");
  }
  CHECK(fs::is_empty(directory.path()));
  for (const std::string content : {"1", "2"}) {  // the second replaces the first
    StagedDirectory staged(path);
    write_text(staged.staging() + "/a", content);
    if (content == "2") CHECK(read_text(path + "/a") == "1");
    staged.commit();
    CHECK(read_text(path + "/a") == content);
  }
  const auto count = std::distance(fs::directory_iterator(directory.path()), {});
  CHECK(count == 1);
  directory.write("checkpoint.partial/left_by_a_killed_run", "x");
  StagedDirectory staged(path);
  CHECK(fs::is_empty(staged.staging()));
}

TEST_CASE("a file that is cut short while it is read ends the process with its name", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("rows", std::string(1 << 16, 'x'));
  int out[2];
  REQUIRE(pipe(out) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDERR_FILENO);
    const MappedFile file(path);
    std::filesystem::resize_file(path, 0);
    _exit(file.text().find('y') == std::string::npos ? 3 : 4);
  }
  close(out[1]);
  char text[4096] = {};
  CHECK(read(out[0], text, sizeof text - 1) > 0);
  close(out[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 1));
  CHECK(std::string(text).find("error: " + path + ": the file was cut short") == 0);
}

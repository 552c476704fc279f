#include "trainer/output_directory.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/error.h"
#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"
#include "trainer/metrics_log.h"

namespace fs = std::filesystem;
using maxim::InputError;
using maxim::OutputDirectory;

namespace {

void write_model(const std::string& directory) {
  maxim::make_directories(directory + "/1_Dense");
  maxim::write_text(directory + "/config.json", "{}");
  maxim::write_text(directory + "/1_Dense/config.json", "{\"new\":1}");
}

}  // namespace

TEST_CASE("a directory with files is refused unless it may be overwritten", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/run";
  { const OutputDirectory fresh(path, false); }
  CHECK_FALSE(fs::exists(path));  // it left nothing behind
  maxim::make_directories(path);
  { const OutputDirectory empty(path, false); }
  CHECK(fs::exists(path));  // it was there before
  maxim::write_text(path + "/config.json", "{}");
  CHECK_THROWS_AS(OutputDirectory(path, false), InputError);
  CHECK(maxim::read_text(path + "/config.json") == "{}");
  CHECK_NOTHROW(OutputDirectory(path, true));
}

TEST_CASE("two jobs cannot write into one directory", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  const OutputDirectory first(temporary.path(), true);
  CHECK_THROWS_WITH(OutputDirectory(temporary.path(), true), Catch::Contains("process"));
}

TEST_CASE("what is no directory is refused", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  maxim::write_text(temporary.path() + "/file", "");
  CHECK_THROWS_AS(OutputDirectory(temporary.path() + "/file", true), InputError);
  CHECK_THROWS_AS(OutputDirectory("/proc/nope", true), InputError);
}

TEST_CASE("a checkpoint appears whole or not at all", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  OutputDirectory output(temporary.path(), true);
  output.save_checkpoint(1, 0, -1, write_model);
  CHECK(fs::exists(output.checkpoint(1) + "/1_Dense/config.json"));
  CHECK_THROWS(output.save_checkpoint(2, 0, -1, [](const std::string& directory) {
    write_model(directory);
    maxim::fail("disk full");
  }));
  CHECK_FALSE(fs::exists(output.checkpoint(2)));
  int entries = 0;  // checkpoint-1 and the lock: nothing half-written is left
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(temporary.path())) ++entries;
  CHECK(entries == 2);
}

TEST_CASE("the limit keeps the newest checkpoints and the best", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  OutputDirectory output(temporary.path(), true);
  for (const int step : {1, 2, 3, 4}) output.save_checkpoint(step, 2, 1, write_model);
  CHECK(fs::exists(output.checkpoint(1)));
  CHECK_FALSE(fs::exists(output.checkpoint(2)));
  CHECK_FALSE(fs::exists(output.checkpoint(3)));
  CHECK(fs::exists(output.checkpoint(4)));
  output.save_checkpoint(5, 1, -1, write_model);
  CHECK_FALSE(fs::exists(output.checkpoint(1)));
  CHECK(fs::exists(output.checkpoint(5)));
}

TEST_CASE("a checkpoint of an earlier run is replaced, one of this run is not written twice",
          "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  const auto writer = [](const char* text) {
    return [text](const std::string& directory) {
      maxim::write_text(directory + "/config.json", text);
    };
  };
  OutputDirectory(temporary.path(), true).save_checkpoint(1, 0, -1, writer("earlier"));
  OutputDirectory output(temporary.path(), true);
  output.save_checkpoint(1, 0, -1, writer("first"));
  CHECK(maxim::read_text(output.checkpoint(1) + "/config.json") == "first");
  output.save_checkpoint(1, 0, -1, writer("second"));
  CHECK(maxim::read_text(output.checkpoint(1) + "/config.json") == "first");
}

TEST_CASE("the final model replaces an old one file by file", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  maxim::make_directories(temporary.path() + "/1_Dense");
  maxim::write_text(temporary.path() + "/1_Dense/config.json", "old");
  OutputDirectory output(temporary.path(), true);
  CHECK_THROWS(output.save_final([](const std::string&) { maxim::fail("disk full"); }));
  CHECK(maxim::read_text(temporary.path() + "/1_Dense/config.json") == "old");
  output.save_final(write_model);
  CHECK(maxim::read_text(temporary.path() + "/1_Dense/config.json") == "{\"new\":1}");
  CHECK_FALSE(fs::exists(temporary.path() + "/.final.partial"));
}

TEST_CASE("records are JSON lines, and NaN becomes null", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/metrics.jsonl";
  maxim::MetricsLog log(path);
  log.write({{"type", "step"}, {"loss", 0.5}});
  log.write({{"loss", std::nan("")}});
  CHECK(maxim::read_text(path) == "{\"type\":\"step\",\"loss\":0.5}\n{\"loss\":null}\n");
  maxim::MetricsLog("").write({{"ignored", 1}});
}

TEST_CASE("an old checkpoint loses its name before its files", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  OutputDirectory output(temporary.path(), true);
  output.save_checkpoint(1, 1, -1, write_model);
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  REQUIRE(inotify_add_watch(watch, output.checkpoint(1).c_str(), IN_DELETE | IN_MOVE_SELF) >= 0);
  output.save_checkpoint(2, 1, -1, write_model);
  CHECK_FALSE(fs::exists(output.checkpoint(1)));
  alignas(inotify_event) char events[4096];
  REQUIRE(read(watch, events, sizeof events) > 0);
  close(watch);
  CHECK(reinterpret_cast<inotify_event*>(events)->mask == IN_MOVE_SELF);    // the first event
  CHECK(std::distance(fs::directory_iterator(temporary.path()), {}) == 2);  // the lock
}

TEST_CASE("what killed runs left half-done is removed, and nothing else", "[output]") {
  const maxim_tests::TemporaryDirectory temporary;
  for (const char* name : {"checkpoint-1.partial", "checkpoint-2.replaced", ".final.partial",
                           "checkpoint-3", "notes.partial"})
    write_model(temporary.file(name));
  const OutputDirectory output(temporary.path(), true);
  CHECK(std::distance(fs::directory_iterator(temporary.path()), {}) == 3);
  CHECK(fs::exists(output.checkpoint(3)));
  CHECK(fs::exists(temporary.file("notes.partial")));
}

// What the command line accepts, and what it refuses. The words of refusals are checked where
// programs run, in tests/apps.
#include "trainer/command_line.h"

#include <sys/stat.h>

#include <vector>

#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim;

namespace {

struct Values {
  int64_t count = 7;
  double rate = 0.5;
  bool flag = false;
  std::vector<std::string> files;
  ModelOptions model;
  bool ran = false;
};

// Parses `words` and returns the exit code; 0 also when it did not run, for --help.
int parse(Values& values, std::vector<std::string> words) {
  CommandLine command("program", "A program.");
  command.app().add_option("--count", values.count)->check(whole_number(1, 1000));
  command.app().add_option("--rate", values.rate)->check(number_above(0));
  command.app().add_option("--file", values.files);
  command.add_boolean("--flag", values.flag, "A flag");
  command.add_model_options(values.model);
  words.insert(words.begin(), {"program", "--model_name_or_path", "directory"});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return command.run(static_cast<int>(argv.size()), argv.data(), [&](World&) {
    values.ran = true;
    return 0;
  });
}

Values parsed(const std::vector<std::string>& words) {
  Values values;
  CHECK(parse(values, words) == 0);
  CHECK(values.ran);
  return values;
}

}  // namespace

TEST_CASE("numbers that CLI11 would let through are refused") {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--count", "0"},
                                             {"--count", "-3"},
                                             {"--count", "1001"},
                                             {"--count", "32x"},
                                             {"--count", "010"},
                                             {"--count", "0x10"},
                                             {"--count", "1e2"},
                                             {"--count", "1.5"},
                                             {"--count", ""},
                                             {"--count", "nan"},
                                             {"--count"},
                                             {"--count", "1", "2"},
                                             {"--rate", "0"},
                                             {"--rate", "-1e-5"},
                                             {"--rate", "nan"},
                                             {"--rate", "inf"},
                                             {"--rate", "1e999"},
                                             {"--rate", "1,5"},
                                             {"--rate", "0.1.2"},
                                             {"--rate", "fast"},
                                             {"--seed", "-1"},
                                             {"--seed", "99999999999999999999"},
                                             {"--flag", "maybe"},
                                             {"--flag", "1"},
                                             {"--cuont", "3"},
                                             {"stray"},
                                             {"--count=1", "--count=2"},
                                             {"--query_length", "0"},
                                             {"--query_prefix", "a\xff"},
                                             {"--document_prefix", "a\xff"},
                                             {"--skiplist_words", ". \xff"},
                                             {"--model_name_or_path", "twice"}}) {
    Values values;
    INFO(words.front() << " " << (words.size() > 1 ? words[1] : ""));
    CHECK(parse(values, words) == 2);
    CHECK_FALSE(values.ran);
  }
  CHECK(parsed({"--count", "1000"}).count == 1000);
  CHECK(parsed({"--rate=1e-300"}).rate == 1e-300);
}

TEST_CASE("a boolean takes true or false, and alone means true") {
  CHECK_FALSE(parsed({}).flag);
  CHECK(parsed({"--flag"}).flag);
  CHECK(parsed({"--flag", "true"}).flag);
  CHECK_FALSE(parsed({"--flag", "false"}).flag);
  CHECK_FALSE(parsed({"--flag=false"}).flag);
  const Values values = parsed({"--flag", "--count", "3"});
  CHECK(values.flag);
  CHECK(values.count == 3);
  CHECK_FALSE(parsed({}).model.overrides.do_query_expansion.has_value());
  CHECK(parsed({"--do_query_expansion"}).model.overrides.do_query_expansion == true);
  CHECK(parsed({"--do_query_expansion", "false"}).model.overrides.do_query_expansion == false);
}

TEST_CASE("model options that are not given leave the model's values alone") {
  const ModelOverrides none = parsed({}).model.overrides;
  CHECK_FALSE(none.query_length.has_value());
  CHECK_FALSE(none.query_prefix.has_value());
  CHECK_FALSE(none.skiplist_words.has_value());
  const ModelOptions options =
      parsed({"--query_length", "48", "--query_prefix", "[Q] ", "--document_prefix", "",
              "--skiplist_words", " . ,  -- \" ", "--embedding_size", "96", "--seed", "0"})
          .model;
  CHECK(options.overrides.query_length == 48);
  CHECK(options.overrides.query_prefix == "[Q] ");
  CHECK(options.overrides.document_prefix == "");
  CHECK(*options.overrides.skiplist_words == std::vector<std::string>{".", ",", "--", "\""});
  CHECK(options.overrides.embedding_size == 96);
  CHECK(options.seed == 0);
  CHECK(parsed({"--skiplist_words", ""}).model.overrides.skiplist_words->empty());
}

TEST_CASE("a config file sets what the command line does not") {
  const maxim_tests::TemporaryDirectory directory;
  const std::string file = directory.file("run.toml");
  write_text(file,
             "# settings [\n"
             "count = 12  # of things\n"
             "flag = true\n"
             "rate = 0.25\n"
             "query_prefix = \"[#1] \"\n"
             "document_prefix = '[\\D] '\n"
             "skiplist_words = \". , #\"\n"
             "file = [\"a b.jsonl\", \"c#d.jsonl\"]\n");
  const Values values = parsed({"--config", file, "--count", "5"});
  CHECK(values.count == 5);
  CHECK(values.flag);
  CHECK(values.rate == 0.25);
  CHECK(values.model.overrides.query_prefix == "[#1] ");
  CHECK(values.model.overrides.document_prefix == "[\\D] ");
  CHECK(*values.model.overrides.skiplist_words == std::vector<std::string>{".", ",", "#"});
  CHECK(values.files == std::vector<std::string>{"a b.jsonl", "c#d.jsonl"});
}

TEST_CASE("a wrong config file is refused") {
  const maxim_tests::TemporaryDirectory directory;
  const std::string file = directory.file("run.toml");
  for (const char* text :
       {"cuont = 3\n", "count = 0\n", "flag = maybe\n", "[model]\ncount = 3\n", "rate = \"0.5\n",
        "file = [\"a.jsonl\",\n\"b.jsonl\"]\n", "query_prefix = \"a\\tb\"\n",
        "query_prefix = \"\"\"a\"\"\"\n", "query_prefix = '''a'''\n", "query_prefix = 'a\xff'\n",
        "config = \"x\"\n", "rate = nan\n"}) {
    write_text(file, text);
    Values values;
    INFO(text);
    CHECK(parse(values, {"--config", file}) == 2);
    CHECK_FALSE(values.ran);
  }
  Values values;
  CHECK(parse(values, {"--config", directory.file("none.toml")}) == 2);
  CHECK(parse(values, {"--config", directory.path()}) == 2);
  const std::string pipe = directory.file("pipe");  // that nobody writes to
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(parse(values, {"--config", pipe}) == 2);
}

TEST_CASE("--help and --version end well without running") {
  Values values;
  CHECK(parse(values, {"--help"}) == 0);
  CHECK(parse(values, {"--version"}) == 0);
  CHECK_FALSE(values.ran);
}

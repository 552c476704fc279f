// ./search from the outside.
#include <filesystem>
#include <sstream>

#include "runtime/files.h"
#include "tests/apps/run.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim_tests;
namespace fs = std::filesystem;

namespace {

const char* kCorpus =
    "{\"_id\": \"paris\", \"text\": \"Paris is the capital of France.\"}\n"
    "{\"_id\": \"war\", \"text\": \"War and Peace\\nis a long\\tbook.\"}\n"
    "{\"_id\": \"light\", \"text\": \"Light travels fast.\"}\n"
    "{\"_id\": \"war2\", \"text\": \"War and Peace\\nis a long\\tbook.\"}\n";

std::vector<std::string> search(const std::string& corpus, const std::vector<std::string>& more) {
  std::vector<std::string> command = {"./search", "--model_name_or_path", "tests/golden/tiny_bert",
                                      "--corpus", corpus};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("search answers typed lines with rank, score, id and text on 1 and 3 ranks") {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.jsonl", kCorpus);
  for (const int ranks : {1, 3}) {
    // A blank line is no query; the last line has no end.
    const RunResult result = run_well(search(corpus, {"--top_k", "3"}),
                                      {.ranks = ranks, .input = "war and peace\n\n  \ncapital"});
    const std::vector<std::string> lines = lines_of(result.out);
    INFO(result.out);
    REQUIRE(lines.size() == 6);
    for (size_t i = 0; i < 6; ++i) {
      CHECK(lines[i].rfind(std::to_string(i % 3 + 1) + "\t", 0) == 0);
      CHECK(count_of(lines[i], "\t") == 3);
    }
    CHECK(count_of(result.out, "\twar\tWar and Peace is a long book.\n") >= 1);
    // The two equal documents have equal scores, the earlier one is first.
    CHECK(result.out.find("\twar\t") < result.out.find("\twar2\t"));
    CHECK(count_of(result.out, "query>") == 0);
  }
  CHECK(run_well(search(corpus, {}), {.input = ""}).out.empty());
}

TEST_CASE("search waits for who types, however long") {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.jsonl", kCorpus);
  std::string line;
  for (const std::string& word : search(corpus, {"--timeout", "1"})) line += " '" + word + "'";
  const RunResult result =
      run_well({"bash", "-c", "(sleep 6; echo war) | mpirun --oversubscribe -np 2" + line});
  CHECK(lines_of(result.out).size() == 4);
}

// OpenBLAS tries for ever to get the 128 MB that it wants for a thread. The limit is what the
// program has when it is ready, less some of that.
TEST_CASE("too little memory for matrix products is told, not waited for") {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.jsonl", kCorpus);
  std::string line;
  for (const std::string& word : search(corpus, {"--device", "cpu"})) line += " '" + word + "'";
  const std::string log = directory.file("log");
  const RunResult result =
      run({"bash", "-c",
           "exec 3< <(exec sleep 9 2> /dev/null); " + line + " <&3 2> " + log + " & " +
               "for i in $(seq 100); do grep -q 'type a query' " + log +
               " && break; sleep 0.1; done; " +
               "ready=$(awk '/VmSize/ { print $2 }' /proc/$!/status); kill $!; "
               "ulimit -v $((ready - 100000)); exec " +
               line});
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(result.seconds < 10);
  CHECK(errors_of(result).size() == 1);
  CHECK(count_of(result.err, "out of memory: OpenBLAS needs") == 1);
}

TEST_CASE("search answers a file of queries, printed or as JSON lines") {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.jsonl", kCorpus);
  const std::string queries = directory.write("queries.txt", "war and peace\nlight\n");
  const std::string output = directory.file("hits.jsonl");
  const RunResult printed = run_well(search(corpus, {"--queries", queries, "--top_k", "1000"}));
  CHECK(lines_of(printed.out).size() == 11);  // a line and four hits each, a blank one between
  for (const int ranks : {1, 3}) {
    const RunResult written =
        run_well(search(corpus, {"--queries", queries, "--top_k", "2", "--output_file", output}),
                 {.ranks = ranks});
    CHECK(written.out.empty());
    const std::vector<std::string> lines = lines_of(maxim::read_text(output));
    REQUIRE(lines.size() == 2);
    const auto second = nlohmann::ordered_json::parse(lines[1]);
    CHECK(second["id"] == "2");
    CHECK(second["text"] == "light");
    REQUIRE(second["hits"].size() == 2);
    CHECK(second["hits"][0]["score"] >= second["hits"][1]["score"]);
    CHECK(count_of(printed.out, second["hits"][0]["id"].get<std::string>() + "\t") > 0);
  }
}

TEST_CASE("search refuses what is wrong") {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.jsonl", kCorpus);
  check_refused(search(corpus, {"--top_k", "0"}), {"--top_k", "'0'"});
  check_refused(search(corpus, {"--top_k", "nan"}), {"--top_k", "'nan'"});
  check_refused(search(directory.file("none.jsonl"), {}), {"none.jsonl"});
  check_refused(search(directory.write("empty.jsonl", ""), {"--queries", corpus}), {"empty.jsonl"});
  check_refused(search(directory.write("twice.jsonl", std::string(kCorpus) + kCorpus), {}),
                {"twice.jsonl:5", "paris"});
  check_refused(search(corpus, {"--output_file", directory.file("out.jsonl")}), {"--queries"});
  check_refused(search(corpus, {"--queries", directory.path()}), {directory.path()});
  check_refused(search(corpus, {"--queries", corpus, "--output_file", corpus}),
                {"--output_file", "corpus.jsonl"});
  CHECK(maxim::read_text(corpus) == kCorpus);
}

TEST_CASE("answers that cannot be written are a failure") {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.jsonl", kCorpus);
  std::vector<std::string> command = search(corpus, {"--queries", corpus});
  // "$@" is the command; its standard output is what the shell made of it.
  for (const char* script : {"\"$@\" >/dev/full", "\"$@\" >&-"}) {
    std::vector<std::string> words = {"sh", "-c", script, "sh"};
    words.insert(words.end(), command.begin(), command.end());
    const RunResult result = run(words);
    INFO(script << "\n" << result.err);
    CHECK(result.exit_code == 1);
    CHECK(count_of(result.err, "error: standard output") == 1);
  }
}

#include "data/beir.h"

#include "tests/catch.h"
#include "tests/data/files.h"
#include "tests/reference/temporary_directory.h"

using Catch::Matchers::Contains;
using maxim::read_beir;
using maxim::read_texts;
using maxim_tests::gzip;
using maxim_tests::input_error;
using maxim_tests::TemporaryDirectory;

namespace {

const char* const kCorpus =
    "{\"_id\":\"d1\",\"title\":\"Light\",\"text\":\"Plants eat it.\",\"metadata\":{\"a\":[1]}}\n"
    "{\"_id\":\"d2\",\"title\":\"\",\"text\":\"Water.\"}\n"
    "{\"text\":\"\",\"_id\":\"7\"}\n";
const char* const kQueries =
    "{\"_id\":\"q1\",\"text\":\"food of plants\",\"metadata\":{}}\n"
    "{\"_id\":\"q2\",\"text\":\"not judged\"}\n"
    "{\"_id\":\"q3\",\"text\":\"wet\"}\n"
    "{\"_id\":\"q4\",\"text\":\"nothing fits\"}\n";
const char* const kQrels =
    "query-id\tcorpus-id\tscore\nq3\td2\t1\nq1\td1\t2\nq1\td2\t0\nq1\t7\t1\nq4\td1\t0\n";

struct Files {
  TemporaryDirectory directory;
  Files(std::string_view corpus, std::string_view queries, std::string_view qrels) {
    directory.write("corpus.jsonl", corpus);
    directory.write("queries.jsonl", queries);
    directory.write("qrels/test.tsv", qrels);
  }
};

std::string error_of(std::string_view corpus, std::string_view queries, std::string_view qrels) {
  const Files files(corpus, queries, qrels);
  return input_error([&] { read_beir(files.directory.path(), "test"); });
}

void check_set(const maxim::RetrievalSet& set) {
  CHECK(set.corpus.ids == std::vector<std::string>{"d1", "d2", "7"});
  CHECK(set.corpus.texts == std::vector<std::string>{"Light Plants eat it.", "Water.", ""});
  CHECK(set.queries.ids == std::vector<std::string>{"q1", "q3"});
  CHECK(set.queries.texts == std::vector<std::string>{"food of plants", "wet"});
  REQUIRE(set.relevant.size() == 2);
  CHECK(set.relevant[0] == std::unordered_map<int64_t, int>{{0, 2}, {2, 1}});
  CHECK(set.relevant[1] == std::unordered_map<int64_t, int>{{1, 1}});
}

}  // namespace

TEST_CASE("beir: a small set") {
  const Files files(kCorpus, kQueries, kQrels);
  check_set(read_beir(files.directory.path(), "test"));
  // Without the header, with CRLF and empty last lines.
  files.directory.write("qrels/dev.tsv", "q1\t7\t1\r\nq1\td1\t2\r\nq3\td2\t1\r\n\r\n");
  check_set(read_beir(files.directory.path(), "dev"));
  const TemporaryDirectory packed;
  packed.write("corpus.jsonl.gz", gzip(kCorpus));
  packed.write("queries.jsonl.gz", gzip(kQueries));
  packed.write("qrels/test.tsv", kQrels);
  check_set(read_beir(packed.path(), "test"));
}

TEST_CASE("beir: errors name file, line and reason") {
  const std::string corpus = kCorpus, queries = kQueries, qrels = kQrels;
  CHECK_THAT(error_of(corpus + "{\"_id\":\"d1\",\"text\":\"\"}\n", queries, qrels),
             Contains("corpus.jsonl:4: the id \"d1\" was in line 1 before"));
  CHECK_THAT(error_of(corpus + "{\"text\":\"\"}\n", queries, qrels),
             Contains("corpus.jsonl:4: \"_id\" is missing"));
  CHECK_THAT(error_of(corpus + "{\"_id\":9,\"text\":\"\"}\n", queries, qrels),
             Contains("corpus.jsonl:4: \"_id\" holds a number"));
  CHECK_THAT(error_of(corpus + "{\"_id\":\"9\",\"title\":\"\"}\n", queries, qrels),
             Contains("corpus.jsonl:4: \"text\" is missing"));
  CHECK_THAT(error_of(corpus + "{\"_id\":\"9\",\"title\":null,\"text\":\"\"}\n", queries, qrels),
             Contains("corpus.jsonl:4: \"title\" holds null"));
  CHECK_THAT(error_of(corpus + "\n" + corpus, queries, qrels),
             Contains("corpus.jsonl:4: an empty line"));
  CHECK_THAT(error_of(corpus, queries + "{\"_id\":\"9\"", qrels),
             Contains("queries.jsonl:5: not valid JSON"));
  CHECK_THAT(error_of(corpus, "", qrels), Contains("queries.jsonl: no text"));
  CHECK_THAT(error_of("\n", queries, qrels), Contains("corpus.jsonl: no text"));
  CHECK_THAT(error_of(corpus, queries, qrels + "q9\td1\t1\n"),
             Contains("test.tsv:7: the query id \"q9\" is not in queries.jsonl"));
  CHECK_THAT(error_of(corpus, queries, qrels + "q1\td9\t1\n"),
             Contains("test.tsv:7: the document id \"d9\" is not in corpus.jsonl"));
  CHECK_THAT(error_of(corpus, queries, qrels + "q1\td1\t1\n"),
             Contains("test.tsv:7: the pair \"q1\", \"d1\" was judged before"));
  for (const char* line : {"q1 d1 1\n", "q1\td1\n", "q1\td1\t1.5\n", "q1\td1\t\n", "q1\td1\t1\tx\n",
                           "q1\td1\t99999999999\n", "q1\t0\td1\t1\n"})
    CHECK_THAT(error_of(corpus, queries, qrels + line),
               Contains("test.tsv:7: expected query-id<TAB>corpus-id<TAB>whole number"));
  CHECK_THAT(error_of(corpus, queries, "query-id\tcorpus-id\tscore\nq4\td1\t0\n"),
             Contains("test.tsv: no query has a relevant document"));
  // The first line is a header only when its third column is no attempt at a number.
  for (const char* line : {"q1\td1\t1.0\n", "q1\td1\t-.5\n", "q1\td1\n", "q1\t0\td1\t1\n"})
    CHECK_THAT(error_of(corpus, queries, line), Contains("test.tsv:1: expected query-id"));
  CHECK_THAT(error_of(corpus, queries, ""), Contains("no query has a relevant document"));
  const Files files(kCorpus, kQueries, kQrels);
  CHECK_THAT(input_error([&] { read_beir(files.directory.path(), "train"); }),
             Contains("qrels/train.tsv"));
}

TEST_CASE("beir: read_texts") {
  const TemporaryDirectory directory;
  const auto read = [&](std::string_view content) {
    return read_texts(directory.write("texts", content));
  };
  const auto error = [&](std::string_view content) { return input_error([&] { read(content); }); };
  const auto plain = read("one\r\n\n \"two\"\t{3}\xE2\x80\xA8\nthree");
  CHECK(plain.texts == std::vector<std::string>{"one", "", " \"two\"\t{3}\xE2\x80\xA8", "three"});
  CHECK(plain.ids == std::vector<std::string>{"1", "2", "3", "4"});
  CHECK(read("\n\n").texts == std::vector<std::string>{"", ""});
  const auto json =
      read(gzip("{\"text\":\"one\",\"x\":[{}]}\n{\"_id\":\"b\",\"title\":\"T\","
                "\"text\":\"two\"}\n\n"));
  CHECK(json.texts == std::vector<std::string>{"one", "T two"});
  CHECK(json.ids == std::vector<std::string>{"1", "b"});
  CHECK_THAT(error(""), Contains("texts: no text"));
  CHECK_THAT(error("one\n\xFF\n"), Contains("texts:2: not valid UTF-8 at byte 1"));
  CHECK_THAT(error("{\"text\":\"one\"}\n{\"texts\":\"two\"}"), Contains("texts:2: \"text\" is mi"));
  CHECK_THAT(error("{\"_id\":\"2\",\"text\":\"\"}\n{\"text\":\"\"}"),
             Contains("texts:2: the id \"2\" was in line 1 before"));
}

TEST_CASE("beir: equal sets have equal fingerprints, others do not") {
  const auto print = [](const std::string& corpus, const std::string& queries,
                        const std::string& qrels) {
    const Files files(corpus, queries, qrels);
    std::string lines = fingerprint(read_beir(files.directory.path(), "test"));
    for (size_t at; (at = lines.find(files.directory.path())) != std::string::npos;)
      lines.erase(at, files.directory.path().size());
    return lines;
  };
  const std::string corpus = "{\"_id\":\"a\",\"text\":\"x\"}\n{\"_id\":\"b\",\"text\":\"y\"}\n";
  const std::string query = "{\"_id\":\"q\",\"text\":\"x\"}\n", qrels = "q\ta\t1\n";
  const std::string same = print(corpus, query, qrels);
  CHECK(same == print(corpus, query, qrels));
  CHECK(same != print(corpus, query, "q\tb\t1\n"));
  CHECK(same != print(corpus, query, "q\ta\t2\n"));
  CHECK(same != print(corpus, "{\"_id\":\"q\",\"text\":\"z\"}\n", qrels));
  CHECK(same !=
        print("{\"_id\":\"b\",\"text\":\"y\"}\n{\"_id\":\"a\",\"text\":\"x\"}\n", query, qrels));
}

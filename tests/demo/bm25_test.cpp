#include <cmath>

#include "tests/catch.h"
#include "tests/demo/demo_program.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

// Lengths without the stop words "the", "and", "with" are 2, 4, 3, 3: 3 words on average.
const char* kCorpus =
    "{\"_id\":\"a\",\"title\":\"\",\"text\":\"Red fox!\"}\n"
    "{\"_id\":\"b\",\"title\":\"The dog\",\"text\":\"red-red and Cat\"}\n"
    "{\"_id\":\"c\",\"title\":\"\",\"text\":\"blue sky 7\"}\n"
    "{\"_id\":\"d\",\"title\":\"\",\"text\":\"with blue sky 8\"}\n";

void write_set(const TemporaryDirectory& directory, const std::string& queries,
               const std::string& qrels) {
  directory.write("corpus.jsonl", kCorpus);
  directory.write("queries.jsonl", queries);
  directory.write("qrels/test.tsv", "query-id\tcorpus-id\tscore\n" + qrels);
}

}  // namespace

TEST_CASE("bm25 gives the scores and metrics computed on paper") {
  const TemporaryDirectory directory;
  write_set(directory,
            "{\"_id\":\"1\",\"text\":\"the RED fox\"}\n{\"_id\":\"2\",\"text\":\"sky, blue sky\"}\n"
            "{\"_id\":\"3\",\"text\":\"is the with\"}\n",
            "1\tb\t1\n2\tc\t1\n3\ta\t1\n");
  const RunResult result = run_demo(
      "bm25", {directory.path(), "test", directory.file("report.json"), directory.file("run.tsv")});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  // idf(fox) = ln(1 + 3.5/1.5) = 1.203973, of red, sky and blue ln(1 + 2.5/2.5) = 0.693147.
  // a: k1 (1 - b + b 2/3) = 0.9, so (1.203973 + 0.693147) / 1.9; b: 1.5, so 0.693147 * 2 / 3.5.
  // c, d: 1.2, so 3 * 0.693147 / 2.2, as the query says "sky" twice; equal, so in corpus order.
  // The third query has stop words alone.
  CHECK(read_text(directory.file("run.tsv")) ==
        "query-id\tcorpus-id\trank\tscore\n"
        "1\ta\t1\t0.998484\n1\tb\t2\t0.396084\n"
        "2\tc\t1\t0.945201\n2\td\t2\t0.945201\n");
  const nlohmann::ordered_json report = read_json(directory.file("report.json"));
  CHECK(std::abs(report.at("mrr@10").get<double>() - ((0.5 + 1 + 0) / 3)) < 1e-12);
  CHECK(std::abs(report.at("ndcg@10").get<double>() - ((1 / std::log2(3.0) + 1 + 0) / 3)) < 1e-12);
  CHECK(std::abs(report.at("recall@10").get<double>() - (2.0 / 3)) < 1e-12);
  CHECK(result.out == "ndcg@10    0.5436\nmrr@10     0.5000\nrecall@10  0.6667\n");
}

TEST_CASE("bm25 refuses what it cannot read in words") {
  const TemporaryDirectory directory;
  write_set(directory, "{\"_id\":\"1\",\"text\":\"fox\"}\n", "1\ta\t1\n");
  const RunResult no_split =
      run_demo("bm25", {directory.path(), "dev", directory.file("report.json")});
  CHECK(no_split.exit_code == 2);
  CHECK(count_of(no_split.err, "qrels/dev.tsv") == 1);
  const RunResult no_arguments = run_demo("bm25", {});
  CHECK(no_arguments.exit_code == 2);
  CHECK(count_of(no_arguments.err, "usage: ") == 1);
  CHECK_FALSE(file_exists(directory.file("report.json")));
}

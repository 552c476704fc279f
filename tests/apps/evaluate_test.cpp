// ./evaluate from the outside.
#include <cmath>
#include <filesystem>

#include "runtime/files.h"
#include "tests/apps/run.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim_tests;
namespace fs = std::filesystem;

namespace {

const std::string kModel = "tests/golden/tiny_bert";

nlohmann::ordered_json golden() { return maxim::read_json("tests/golden/evaluators.json"); }

// PyLate's small retrieval set in the BEIR form; returns its directory.
std::string write_beir(const TemporaryDirectory& directory) {
  const nlohmann::ordered_json ir = golden()["ir"];
  for (const char* part : {"corpus", "queries"}) {
    std::string lines;
    for (const auto& [id, text] : ir[part].items())
      lines += nlohmann::ordered_json{{"_id", id}, {"text", text}}.dump() + "\n";
    directory.write("beir/" + std::string(part) + ".jsonl", lines);
  }
  std::string qrels = "query-id\tcorpus-id\tscore\n";
  for (const auto& [query, documents] : ir["relevant"].items())
    for (const std::string document : documents) qrels += query + "\t" + document + "\t1\n";
  directory.write("beir/qrels/test.tsv", qrels);
  return directory.file("beir");
}

std::vector<std::string> evaluate(const std::vector<std::string>& more) {
  std::vector<std::string> command = {"./evaluate", "--model_name_or_path", kModel};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

}  // namespace

TEST_CASE("evaluate gives PyLate's retrieval metrics on 1 and 3 ranks") {
  const TemporaryDirectory directory;
  const std::string beir = write_beir(directory);
  const nlohmann::ordered_json expected = golden()["ir"]["returned"];
  for (const int ranks : {1, 3}) {
    const std::string output = directory.file("metrics" + std::to_string(ranks) + ".json");
    const RunResult result = run_well(evaluate({"--beir_dir", beir, "--output_file", output,
                                                "--per_device_eval_batch_size", "3"}),
                                      {.ranks = ranks});
    CHECK(count_of(result.out, "ndcg@10") == 1);
    CHECK(count_of(result.out, "4 queries, 12 documents") == 1);
    CHECK(count_of(result.out, "0.4874") == 1);
    const nlohmann::ordered_json metrics = maxim::read_json(output);
    CHECK(metrics["queries"] == 4);
    CHECK(metrics["documents"] == 12);
    CHECK(metrics["seconds"].get<double>() > 0);
    CHECK(metrics.size() == 21);  // three, five cutoffs of three kinds, three counts
    for (const char* name :
         {"ndcg@10", "mrr@10", "map@100", "accuracy@3", "precision@1", "recall@3"}) {
      const double value = expected["ir_MaxSim_" + std::string(name)];
      INFO(name << " " << metrics[name] << ", PyLate " << value);
      CHECK(std::abs(metrics[name].get<double>() - value) < 1e-9);
    }
  }
}

TEST_CASE("evaluate gives PyLate's triplet accuracy on 1 and 3 ranks") {
  const TemporaryDirectory directory;
  const nlohmann::ordered_json texts = golden()["texts"];
  std::string rows;
  for (size_t i = 0; i < 4; ++i)
    rows += fmt::format("{}\t{}\t{}\n", texts["anchors"][i].get<std::string>(),
                        texts["positives"][i].get<std::string>(),
                        texts["negatives"][i].get<std::string>());
  const std::string file = directory.write("rows.tsv", rows), output = directory.file("out.json");
  for (const int ranks : {1, 3}) {
    const RunResult result =
        run_well(evaluate({"--triplet_file", file, "--output_file", output}), {.ranks = ranks});
    CHECK(count_of(result.out, "0.5000") == 1);
    const nlohmann::ordered_json metrics = maxim::read_json(output);
    CHECK(metrics["accuracy"] == 0.5);
    CHECK(metrics["triplets"] == 4);
  }
}

TEST_CASE("evaluate refuses what is wrong") {
  const TemporaryDirectory directory;
  const std::string beir = write_beir(directory);
  const std::string triplets = directory.write("rows.tsv", "war\tpeace\tcity\n");
  check_refused(evaluate({}), {"--triplet_file", "--beir_dir"});
  check_refused(evaluate({"--triplet_file", triplets, "--beir_dir", beir}),
                {"--triplet_file", "--beir_dir"});
  check_refused(evaluate({"--beir_dir", directory.file("none")}), {directory.file("none")});
  check_refused(evaluate({"--beir_dir", beir, "--split", "dev"}), {"qrels/dev.tsv"});
  check_refused(evaluate({"--beir_dir", beir, "--output_file", directory.file("no/out.json")}),
                {"no/out.json"});
  const std::string queries = beir + "/queries.jsonl", text = maxim::read_text(queries);
  check_refused(evaluate({"--beir_dir", beir, "--output_file", queries}),
                {"--output_file", queries});
  CHECK(maxim::read_text(queries) == text);
  directory.write("beir/qrels/odd.tsv", "query-id\tcorpus-id\tscore\nq1\td77\t1\n");
  check_refused(evaluate({"--beir_dir", beir, "--split", "odd"}), {"odd.tsv:2", "d77"});
  check_refused(evaluate({"--triplet_file", directory.write("pairs.tsv", "war\tpeace\n")}),
                {"negative"});
  check_refused(evaluate({"--triplet_file", directory.write("bad.jsonl", "{\"query\": \"a\"\n")}),
                {"bad.jsonl:1"});
  check_refused(evaluate({"--triplet_file", triplets, "--per_device_eval_batch_size", "0"}),
                {"--per_device_eval_batch_size", "'0'"});
}

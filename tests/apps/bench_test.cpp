// The benchmarks verify what they time; here they only verify.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/apps/run.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim_tests;
using Json = nlohmann::json;

namespace {

std::vector<Json> rows_of(const std::string& file) {
  std::vector<Json> rows;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

}  // namespace

// Also that no operation moves much more than it must, by its plan, where there is much to move.
TEST_CASE("bench: every operation is right on the emulated GPU", "[bench][emulated]") {
  for (const char* type : {"f32", "bf16"}) {
    const TemporaryDirectory directory;
    const std::string file = directory.file("rows.jsonl");
    run_well({"build/emulated/bench/kernels", "--tokens", "64", "--type", type, "--json", file},
             {.timeout = 120});
    std::set<std::string> operations;
    for (const Json& row : rows_of(file)) {
      INFO(row.dump());
      operations.insert(row["operation"]);
      const bool copies = row["operation"] == "convert" && type == std::string("f32");
      CHECK((copies || row["launches"] >= 1));
      if (row["bytes"] > 1e6) CHECK(row["declared_bytes"] <= 2.5 * row["bytes"].get<double>());
    }
    CHECK(operations.size() >= 15);
  }
}

TEST_CASE("bench: every collective is right", "[bench]") {
  for (const int ranks : {2, 4}) {
    const TemporaryDirectory directory;
    const std::string file = directory.file("rows.jsonl");
    run_well({"build/bench/collectives", "--device", "cpu", "--max_mb", "1", "--repetitions", "1",
              "--json", file},
             {.ranks = ranks, .timeout = 120});
    std::set<std::string> operations;
    for (const Json& row : rows_of(file)) {
      INFO(row.dump());
      operations.insert(row["operation"]);
      CHECK(row["wrong"] == 0);
      CHECK(row["ranks"] == ranks);
    }
    for (const char* name : {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier",
                             "vectors of 256 documents a rank", "22.7 M gradients, 25 MB buckets"})
      CHECK(operations.count(name) == 1);
  }
}

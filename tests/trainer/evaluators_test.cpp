// The evaluators against PyLate's numbers on the tiny model (tests/golden/evaluators.json).
#include "trainer/evaluators.h"

#include <cmath>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"
#include "tests/trainer/tiny_model.h"
#include "trainer/retrieval.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

// The golden queries, corpus and judgements, in the order of the file.
RetrievalSet golden_set(const nlohmann::ordered_json& ir) {
  RetrievalSet set;
  std::unordered_map<std::string, int64_t> number;
  for (const auto& [id, text] : ir["corpus"].items()) {
    number[id] = static_cast<int64_t>(set.corpus.ids.size());
    set.corpus.ids.push_back(id);
    set.corpus.texts.push_back(text);
  }
  for (const auto& [id, text] : ir["queries"].items()) {
    set.queries.ids.push_back(id);
    set.queries.texts.push_back(text);
    set.relevant.emplace_back();
    for (const std::string document : ir["relevant"][id])
      set.relevant.back()[number.at(document)] = 1;
  }
  return set;
}

TrainingData training_data(const std::string& file) {
  return TrainingData({file}, TrainingDataOptions{});
}

}  // namespace

TEST_CASE("retrieval metrics and scores are PyLate's where no score is floored") {
  // PyLate pads documents with zero vectors and so never lets a query token score below 0. With
  // this model all similarities of the best tokens are positive: every number agrees.
  const nlohmann::ordered_json golden = golden_json("evaluators")["ir"];
  const RetrievalSet set = golden_set(golden);
  const auto session = tiny_model();
  SoloCommunicator solo;
  const Metrics metrics = evaluate_retrieval(*session, solo, set, {});
  for (const auto& [name, value] : golden["returned"].items()) {
    const std::string ours = name.substr(std::string("ir_MaxSim_").size());
    if (ours == "mrr@3") continue;  // not one of ours
    INFO(ours << " " << metric(metrics, ours) << ", PyLate " << value);
    CHECK(std::abs(metric(metrics, ours) - value.get<double>()) < 1e-9);
  }
  const auto hits = retrieve(*session, solo, set.queries.texts, set.corpus.texts, 12, {});
  for (size_t q = 0; q < hits.size(); ++q) {
    REQUIRE(hits[q].size() == 12);
    for (const Hit& hit : hits[q]) {
      const double expected = golden["score_matrix"][q][hit.document];
      INFO("query " << q << " document " << hit.document << ": " << hit.score << ", PyLate "
                    << expected);
      CHECK(std::abs(hit.score - expected) < 2e-4);
    }
  }
}

TEST_CASE("triplet accuracy is PyLate's") {
  const nlohmann::ordered_json golden = golden_json("evaluators");
  const TemporaryDirectory directory;
  std::string rows;
  for (size_t i = 0; i < 4; ++i)
    rows += nlohmann::ordered_json{{"query", golden["texts"]["anchors"][i]},
                                   {"positive", golden["texts"]["positives"][i]},
                                   {"negative", golden["texts"]["negatives"][i]},
                                   {"negative_2", "not looked at"}}
                .dump() +
            "\n";
  const auto session = tiny_model();
  SoloCommunicator solo;
  const TrainingData data = training_data(directory.write("rows.jsonl", rows));
  for (int64_t batch : {1, 3, 32}) {
    const Metrics metrics = evaluate_triplets(*session, solo, data, {.batch_size = batch});
    REQUIRE(metrics.size() == 1);
    CHECK(metric(metrics, "accuracy") == golden["triplet"]["returned"]["accuracy"]);
  }
}

TEST_CASE("a triplet whose documents are the same is not ranked right") {
  const TemporaryDirectory directory;
  const auto session = tiny_model();
  SoloCommunicator solo;
  const TrainingData same = training_data(directory.write("same.tsv", "war\tpeace\tpeace\n"));
  CHECK(metric(evaluate_triplets(*session, solo, same, {}), "accuracy") == 0);
  // Turning a row round turns its outcome round.
  const TrainingData both = training_data(
      directory.write("both.tsv", "war\tpeace\tlight water\nwar\tlight water\tpeace\n"));
  CHECK(metric(evaluate_triplets(*session, solo, both, {}), "accuracy") == 0.5);
}

TEST_CASE("triplet accuracy without negatives is an input error") {
  const TemporaryDirectory directory;
  const auto session = tiny_model();
  SoloCommunicator solo;
  const TrainingData pairs = training_data(directory.write("pairs.tsv", "war\tpeace\n"));
  CHECK_THROWS_AS(evaluate_triplets(*session, solo, pairs, {}), InputError);
}

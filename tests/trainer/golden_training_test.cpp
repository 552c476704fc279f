// Five optimizer steps against PyLate's real trainer (tests/golden/adamw_steps.*): losses, gradient
// norms, weights afterwards. Two of PyLate's conventions are faults and not ours; the tests say
// which number is which: accumulation divides the gradient twice, and CachedContrastive's gradient
// is the batch size times the true one.
#include <cmath>

#include "comm/communicator.h"
#include "comm/solo_communicator.h"
#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tests/catch.h"
#include "trainer/train_step.h"

using namespace maxim;
using Json = nlohmann::ordered_json;

namespace {

const std::string kGolden = "tests/golden/adamw_steps";

struct Outcome {
  std::vector<double> losses, norms;
};

// Trains on the golden rows: `accumulation` micro-batches a step, rates as recorded.
Outcome train(ModelSession& session, const Json& golden, const Json& texts, float weight_decay,
              const std::vector<int>& micro_batches_of_step) {
  SoloCommunicator solo;
  TrainStepSettings settings;
  settings.loss.documents_per_query = 2;
  settings.optimizer.learning_rate = 1e-3f;
  settings.optimizer.weight_decay = weight_decay;
  settings.per_device_batch = 2;
  TrainStep train_step(session, solo, settings);
  Outcome outcome;
  size_t next = 0;
  for (size_t step = 0; step < micro_batches_of_step.size(); ++step) {
    std::vector<LoadedMicroBatch> batches(micro_batches_of_step[step]);
    LoadedStep loaded;
    for (LoadedMicroBatch& batch : batches) {
      const std::vector<int> rows = golden["row_order"][next++];
      const auto text = [&](const char* column, int row) {
        return texts[column][row].get<std::string>();
      };
      for (size_t i = 0; i < rows.size(); ++i)
        session.text_encoder().append_query(batch.tokens, text("queries", rows[i]), i, 0);
      for (size_t i = 0; i < rows.size(); ++i) {
        session.text_encoder().append_document(batch.tokens, text("positives", rows[i]), i, 1);
        session.text_encoder().append_document(batch.tokens, text("negatives", rows[i]), i, 2);
      }
      loaded.global_rows += static_cast<int64_t>(rows.size());
    }
    loaded.micro_batches = batches;
    train_step.run(loaded, static_cast<int64_t>(step), golden["lrs"][step].get<double>() / 1e-3);
    const StepMetrics metrics = train_step.read_metrics();
    outcome.losses.push_back(metrics.losses.at(0));
    outcome.norms.push_back(metrics.gradient_norm);
  }
  return outcome;
}

std::vector<float> values_of(ModelSession& session, const std::string& name) {
  const Tensor value = session.parameters().value(name);
  std::vector<float> result(value.size());
  session.device().copy_out(result.data(), value);
  return result;
}

// Compares every tensor that the golden file has of `run` (complete, sampled, or some rows), and
// returns how many.
int check_weights(ModelSession& session, const std::string& run, double bound) {
  const SafetensorsFile file(kGolden + ".safetensors");
  int compared = 0;
  for (const Parameter& parameter : session.parameters().list()) {
    if (parameter.name.find("key.bias") != std::string::npos) continue;  // true gradient zero
    const std::vector<float> ours = values_of(session, parameter.name);
    const std::string name = run + "." + parameter.name;
    const int64_t n = parameter.size();
    std::vector<int64_t> index;
    std::string source = name;
    if (file.entries().count(name) > 0) {
      for (int64_t i = 0; i < n; ++i) index.push_back(i);
    } else if (file.entries().count(name + ".sampled") > 0) {
      source = name + ".sampled";
      for (int64_t i = 0; i < 1024; ++i) index.push_back(i * n / 1024);
    } else {
      source = name + ".values";
      const int64_t rows = file.at(source).shape[0];
      for (int64_t r = 0; r < rows; ++r) {
        int64_t row = r;
        if (file.entries().count(name + ".rows") > 0)
          row = reinterpret_cast<const int64_t*>(file.at(name + ".rows").data)[r];
        else if (rows != parameter.rows)
          continue;
        for (int64_t c = 0; c < parameter.cols; ++c) index.push_back(row * parameter.cols + c);
      }
      if (index.empty()) continue;
    }
    std::vector<float> golden(file.at(source).elements());
    read_as_float(file, source, golden.data());
    REQUIRE(golden.size() == index.size());
    size_t worst = 0;
    for (size_t i = 0; i < index.size(); ++i)
      if (std::abs(ours[index[i]] - golden[i]) > std::abs(ours[index[worst]] - golden[worst]))
        worst = i;
    INFO(parameter.name << " element " << index[worst] << ": " << ours[index[worst]] << ", golden "
                        << golden[worst] << ", bound " << bound);
    CHECK(std::abs(ours[index[worst]] - golden[worst]) <= bound);
    ++compared;
  }
  return compared;
}

ModelSession tiny_model() {
  return ModelSession({.model_name_or_path = "tests/golden/tiny_bert", .overrides = {}}, true);
}

}  // namespace

TEST_CASE("five AdamW steps give PyLate's losses, norms and weights", "[golden][adamw]") {
  const Json json = read_json(kGolden + ".json");
  const std::string run = GENERATE("adamw.default", "adamw.wd0.1");
  ModelSession session = tiny_model();
  const Outcome outcome =
      train(session, json[run], json["texts"], run == "adamw.wd0.1" ? 0.1f : 0.0f, {1, 1, 1, 1, 1});
  for (int step = 0; step < 5; ++step) {
    INFO(run << ", step " << step + 1);
    CHECK(outcome.losses[step] == Approx(json[run]["losses"][step].get<double>()).epsilon(1e-5));
    CHECK(outcome.norms[step] == Approx(json[run]["grad_norms"][step].get<double>()).epsilon(1e-4));
  }
  CHECK(check_weights(session, run, 2e-6) >= 30);
}

TEST_CASE("accumulation: our gradient is the mean over all queries, PyLate's is divided twice",
          "[golden][adamw]") {
  const Json json = read_json(kGolden + ".json");
  ModelSession session = tiny_model();
  const Json& golden = json["adamw.accum2"];
  const Outcome outcome = train(session, golden, json["texts"], 0, {2, 2, 1, 2, 2});
  const Json& mean = json["accum2"]["sane_grad_norms(mean over micro-batches)"];
  for (int step = 0; step < 5; ++step) {
    INFO("step " << step + 1);
    CHECK(outcome.losses[step] == Approx(golden["losses"][step].get<double>()).epsilon(1e-5));
    CHECK(outcome.norms[step] == Approx(mean[step].get<double>()).epsilon(1e-4));
    CHECK(outcome.norms[step] / golden["grad_norms"][step].get<double>() ==
          Approx(2).epsilon(1e-4));  // the fault
  }
  // Clipping at 1 hides the factor from the weights.
  CHECK(check_weights(session, "adamw.accum2", 2e-6) >= 30);
}

TEST_CASE("the cached loss of PyLate has a gradient that is the batch size too large",
          "[golden][adamw]") {
  const Json json = read_json(kGolden + ".json");
  ModelSession session = tiny_model();
  const Json& golden = json["adamw.cached.mb1"];
  const Outcome outcome = train(session, golden, json["texts"], 0, {1, 1, 1, 1, 1});
  for (int step = 0; step < 5; ++step) {
    CHECK(outcome.losses[step] == Approx(golden["losses"][step].get<double>()).epsilon(1e-5));
    CHECK(golden["grad_norms"][step].get<double>() / outcome.norms[step] ==
          Approx(2).epsilon(1e-4));  // batch size 2: the fault
  }
}

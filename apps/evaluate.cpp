// evaluate: how well a model ranks. Retrieval metrics of a BEIR directory, or the accuracy of
// triplets; a table on standard output, JSON in --output_file.
#include <chrono>
#include <nlohmann/json.hpp>

#include "data/beir.h"
#include "data/training_data.h"
#include "runtime/files.h"
#include "trainer/command_line.h"
#include "trainer/evaluators.h"

namespace {

using namespace maxim;

struct Options {
  ModelOptions model;
  EncodeSettings settings;
  std::string triplet_file, beir_dir, split = "test", output_file;
};

struct Report {
  Metrics metrics;
  nlohmann::ordered_json counts;  // queries and documents, or triplets
};

Report evaluate(const Options& options, World& world) {
  Communicator& communicator = *world.communicator;
  if (options.triplet_file.empty() == options.beir_dir.empty())
    fail_input("evaluate needs one of --triplet_file and --beir_dir");
  if (options.beir_dir.empty()) {
    std::unique_ptr<TrainingData> data;
    communicator.checked([&] {
      data = std::make_unique<TrainingData>(std::vector<std::string>{options.triplet_file},
                                            TrainingDataOptions{});
    });
    communicator.demand_same(data->fingerprint());
    const auto session = open_model(options.model, false, world);
    return {evaluate_triplets(*session, session->communicator(), *data, options.settings),
            {{"triplets", data->rows()}}};
  }
  RetrievalSet set;
  communicator.checked([&] { set = read_beir(options.beir_dir, options.split); });
  communicator.demand_same(fingerprint(set));
  const auto session = open_model(options.model, false, world);
  return {evaluate_retrieval(*session, session->communicator(), set, options.settings),
          {{"queries", set.queries.texts.size()}, {"documents", set.corpus.texts.size()}}};
}

// accuracy@1, accuracy@3, … become one row each of a table, the others a line.
void print_table(const Report& report, double seconds) {
  std::string row;
  for (const auto& [name, value] : report.metrics) {
    const std::string kind = name.substr(0, name.find('@'));
    const bool tabled = kind == "accuracy" || kind == "precision" || kind == "recall";
    if (!tabled || kind == name) {
      fmt::print("{:<10} {:.4f}\n", name, value);
      continue;
    }
    if (row.empty()) fmt::print("\n{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}", "at", 1, 3, 5, 10, 100);
    if (kind != row) fmt::print("\n{:<10}", row = kind);
    fmt::print("{:>8.4f}", value);
  }
  fmt::print("{}\n", row.empty() ? "" : "\n");
  for (const auto& [name, count] : report.counts.items())
    fmt::print("{} {}, ", count.get<int64_t>(), name);
  fmt::print("{:.1f} s\n", seconds);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine command("evaluate", "Measures how well a late-interaction model ranks.");
  command.add_model_options(options.model);
  const auto add = [&](const char* name, std::string& value, const char* description) {
    command.app().add_option(name, value, description)->group("Data");
  };
  add("--triplet_file", options.triplet_file,
      ".jsonl or .tsv, also .gz: query, positive, negative; the share that is ranked right");
  add("--beir_dir", options.beir_dir,
      "Directory with corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv; retrieval metrics");
  add("--split", options.split, "SPLIT of --beir_dir");
  add("--output_file", options.output_file, "JSON file to write the metrics to");
  command.add_eval_options(options.settings);
  return command.run(argc, argv, [&](World& world) {
    const auto file = stage_output(options.output_file,
                                   {options.triplet_file, options.beir_dir + "/corpus.jsonl",
                                    options.beir_dir + "/queries.jsonl"},
                                   *world.communicator);
    const auto start = std::chrono::steady_clock::now();
    const Report report = evaluate(options, world);
    if (world.rank != 0) return 0;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    print_table(report, seconds.count());
    if (file == nullptr) return 0;
    nlohmann::ordered_json json;
    for (const auto& [name, value] : report.metrics) json[name] = value;
    json.update(report.counts);
    json["seconds"] = seconds.count();
    write_json(file->staging(), json);
    file->commit();
    return 0;
  });
}

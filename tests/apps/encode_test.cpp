// ./encode from the outside.
#include <cmath>
#include <filesystem>

#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tests/apps/run.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim_tests;
namespace fs = std::filesystem;

namespace {

const std::string kModel = "tests/golden/tiny_bert";

template <class T>
std::vector<T> values(const maxim::SafetensorsFile& file, const std::string& name) {
  const maxim::SafetensorsEntry& entry = file.at(name);
  const T* data = reinterpret_cast<const T*>(entry.data);
  return {data, data + entry.elements()};
}

std::vector<std::string> encode(const std::string& input, const std::string& output) {
  return {"./encode", "--model_name_or_path", kModel, "--input_file",
          input,      "--output_file",        output};
}

// A copy of the tiny model whose file `name` is replaced by `content`.
std::string broken_model(const TemporaryDirectory& directory, const std::string& name,
                         const std::string& content) {
  const std::string copy = directory.file("broken_" + name);
  fs::copy(kModel, copy, fs::copy_options::recursive);
  directory.write("broken_" + name + "/" + name, content);
  return copy;
}

}  // namespace

TEST_CASE("encode writes the scored tokens of PyLate, the same on 1 and 3 ranks") {
  const TemporaryDirectory directory;
  const auto texts = maxim::read_json("tests/golden/encoder_forward.json")["texts"];
  std::string lines;
  for (const std::string text : texts)
    lines += nlohmann::ordered_json{{"text", text}}.dump() + "\n";
  const std::string input = directory.write("texts.jsonl", lines);
  const maxim::SafetensorsFile golden("tests/golden/encoder_forward.safetensors");
  for (const bool is_query : {true, false}) {
    const std::string kind = is_query ? "q" : "d";
    const std::vector<uint8_t> mask = values<uint8_t>(golden, kind + ".score_mask");
    const std::vector<float> expected = values<float>(golden, kind + ".embeddings");
    const std::vector<int64_t> ids = values<int64_t>(golden, kind + ".input_ids");
    for (const int ranks : {1, 3}) {
      const std::string output = directory.file(kind + std::to_string(ranks) + ".safetensors");
      std::vector<std::string> command = encode(input, output);
      if (is_query) command.push_back("--is_query");
      const RunResult result = run_well(command, {.ranks = ranks});
      CHECK(result.out.empty());
      REQUIRE(fs::exists(output));
      CHECK_FALSE(fs::exists(output + ".partial"));
      const maxim::SafetensorsFile file(output);
      CHECK(file.entries().size() == 3);
      const std::vector<float> vectors = values<float>(file, "embeddings");
      const std::vector<int64_t> offsets = values<int64_t>(file, "offsets");
      const std::vector<int32_t> tokens = values<int32_t>(file, "input_ids");
      REQUIRE(file.at("embeddings").shape ==
              std::vector<int64_t>{static_cast<int64_t>(tokens.size()), 64});
      REQUIRE(offsets.size() == texts.size() + 1);
      size_t row = 0;
      double worst = 0;
      const size_t length = mask.size() / texts.size();
      for (size_t i = 0; i < mask.size(); ++i) {
        if (i % length == 0) CHECK(offsets[i / length] == static_cast<int64_t>(row));
        if (mask[i] == 0) continue;
        REQUIRE(row < tokens.size());
        CHECK(tokens[row] == ids[i]);
        for (size_t k = 0; k < 64; ++k)
          worst = std::max<double>(worst, std::abs(vectors[row * 64 + k] - expected[i * 64 + k]));
        ++row;
      }
      CHECK(row == tokens.size());
      INFO(kind << " on " << ranks << " ranks: off by " << worst);
      CHECK(worst < 2e-5);
    }
  }
}

TEST_CASE("encode replaces the file of an earlier run, and takes a config file") {
  const TemporaryDirectory directory;
  const std::string input = directory.write("texts.txt", "war\n\npeace and war\n");
  const std::string output = directory.write("out.safetensors", "old");
  const std::string config = directory.write("run.toml", fmt::format("model_name_or_path = \"{}\"\n"
                                                                     "input_file = \"{}\"\n"
                                                                     "output_file = \"{}\"\n"
                                                                     "is_query = true\n"
                                                                     "query_length = 20\n",
                                                                     kModel, input, output));
  run_well({"./encode", "--config", config});
  CHECK(maxim::SafetensorsFile(output).at("input_ids").shape == std::vector<int64_t>{60});
}

TEST_CASE("encode refuses what is wrong with the model") {
  const TemporaryDirectory directory;
  const std::string input = directory.write("texts.txt", "war\n");
  const auto refused = [&](const std::string& model, const std::vector<std::string>& words) {
    check_refused({"./encode", "--model_name_or_path", model, "--input_file", input,
                   "--output_file", directory.file("out.safetensors")},
                  words);
    CHECK_FALSE(fs::exists(directory.file("out.safetensors")));
    CHECK_FALSE(fs::exists(directory.file("out.safetensors.partial")));
  };
  refused(directory.file("none"), {directory.file("none")});
  const std::string config = maxim::read_text(kModel + "/config.json");
  refused(broken_model(directory, "config.json", config.substr(0, config.size() / 2)),
          {"config.json"});
  const std::string weights = maxim::read_text(kModel + "/model.safetensors");
  refused(broken_model(directory, "model.safetensors", weights.substr(0, weights.size() - 100)),
          {"model.safetensors"});
  refused(broken_model(directory, "tokenizer.json", "{}"), {"tokenizer.json"});
  nlohmann::ordered_json deeper = nlohmann::ordered_json::parse(config);
  deeper["num_hidden_layers"] = 3;
  fs::remove_all(directory.file("broken_config.json"));
  refused(broken_model(directory, "config.json", deeper.dump()),
          {"encoder.layer.2.attention.self.query.weight"});
}

TEST_CASE("encode refuses what is wrong with the command") {
  const TemporaryDirectory directory;
  const std::string input = directory.write("texts.txt", "war\n");
  const std::string output = directory.file("out.safetensors");
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> command = encode(input, output);
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  check_refused(with({"--docment_length", "20"}), {"--docment_length", "--document_length?"});
  check_refused(with({"--document_length", "600"}), {"600", "256"});
  check_refused(with({"--is_query", "perhaps"}), {"--is_query", "perhaps"});
  check_refused({"./encode", "--model_name_or_path", kModel, "--output_file", output},
                {"--input_file", "required"});
  check_refused(encode(directory.write("empty.txt", ""), output), {"empty.txt"});
  check_refused(encode(directory.write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n"), output),
                {"bad.jsonl:2"});
  check_refused({"./encode", "--modle_name_or_path", kModel},
                {"--modle_name_or_path", "--model_name_or_path?"});
  check_refused(encode(input, input), {"--output_file", "texts.txt"});
  CHECK(maxim::read_text(input) == "war\n");
  check_refused(encode(input, directory.path()), {directory.path(), "directory"});
  check_refused(encode(input, directory.file("no/such/out.safetensors")), {"no/such"});
  check_refused({"./encode", "--config", directory.write("run.toml", "inptu_file = 'x'\n")},
                {"run.toml", "inptu_file", "--input_file?"});
  CHECK_FALSE(fs::exists(output));
}

TEST_CASE("--help and --version are printed once") {
  for (const char* program : {"./encode", "./evaluate", "./search"}) {
    for (const int ranks : {1, 3}) {
      const RunResult help = run_well({program, "--help"}, {.ranks = ranks});
      CHECK(count_of(help.out, "--model_name_or_path") == 1);
      CHECK(help.err.empty());
    }
    CHECK(run_well({program, "--version"}).out.find("Maxim ") == 0);
  }
}

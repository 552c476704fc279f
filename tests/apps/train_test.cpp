// ./train as a user meets it: what it leaves behind, and what it says of bad input.
#include <cstdlib>
#include <filesystem>
#include <set>

#include "comm/host.h"
#include "runtime/files.h"
#include "tests/apps/run.h"
#include "tests/apps/train_data.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"

using namespace maxim_tests;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kModel = "tests/golden/tiny_bert";

struct Fixture {
  TemporaryDirectory directory;
  std::string rows = directory.file("rows.tsv");
  std::string output = directory.file("out");
  Fixture() { maxim::write_text(rows, training_rows(20, 1)); }

  std::vector<std::string> command(const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> result = {"./train", "--model_name_or_path", kModel, "--train_file",
                                       rows,      "--output_dir",         output};
    result.insert(result.end(), flags.begin(), flags.end());
    return result;
  }
};

}  // namespace

TEST_CASE("a run leaves a model, its records and nothing else", "[train]") {
  const Fixture f;
  const RunResult result = run(f.command({"--num_train_epochs", "2", "--logging_steps", "2"}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out.empty());
  CHECK(result.err.find('\r') == std::string::npos);  // no terminal: plain lines

  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(f.output)) files.insert(entry.path().filename());
  CHECK(files == std::set<std::string>{
                     "1_Dense", "README.md", "config.json", "config_sentence_transformers.json",
                     "metrics.jsonl", "model.safetensors", "modules.json",
                     "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"});
  const Json start = records(f.output, "start").at(0);
  CHECK(start["ranks"] == 1);
  CHECK(start["rows"] == 20);
  CHECK(start["global_batch_size"] == 8);
  CHECK(start["candidates_per_query"] == 16);
  CHECK(start["steps"] == 6);
  CHECK(start["gemm_library"].get<std::string>().find("OpenBLAS") == 0);
  CHECK(records(f.output, "step").size() == 3);
  for (const Json& step : records(f.output, "step"))
    for (const char* key : {"loss", "grad_norm", "learning_rate", "epoch", "tokens_per_second"})
      CHECK(step.at(key).is_number());
  const Json end = records(f.output, "end").at(0);
  CHECK(end["rows_trained"] == 40);
  CHECK(end["rows_read"] == 20);
  CHECK(end["rows_dropped"] == 0);
}

TEST_CASE("training fits what it is shown", "[train]") {
  const Fixture f;
  const RunResult result =
      run(f.command({"--max_steps", "60", "--learning_rate", "1e-3", "--logging_steps", "20"}));
  REQUIRE(result.exit_code == 0);
  const std::vector<Json> steps = records(f.output, "step");
  CHECK(steps.back()["loss"].get<double>() < 0.5 * steps.front()["loss"].get<double>());
}

TEST_CASE("fewer rows than ranks times batch are trained exactly", "[train]") {
  const Fixture f;
  maxim::write_text(f.rows, training_rows(3, 1));
  const RunResult result = run(
      f.command({"--per_device_train_batch_size", "32", "--num_train_epochs", "1"}), {.ranks = 2});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(records(f.output, "end").at(0)["rows_trained"] == 3);
}

TEST_CASE("rejected, dropped and trained rows add up", "[train]") {
  const Fixture f;
  maxim::write_text(f.rows, training_rows(10, 1) + "only a query\n" + training_rows(11, 1));
  const RunResult result =
      run(f.command({"--bad_rows", "skip", "--dataloader_drop_last", "--num_train_epochs", "1"}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const Json end = records(f.output, "end").at(0);
  CHECK(end["rows_read"] == 22);
  CHECK(end["rows_rejected"] == 1);
  CHECK(end["rows_trained"] == 16);
  CHECK(end["rows_dropped"] == 5);
  CHECK(result.err.find("rows.tsv:11") != std::string::npos);

  // 21 rows in batches of 8 are 2 steps an epoch: 4 steps leave out two tails of 5.
  REQUIRE(run(f.command({"--bad_rows", "skip", "--dataloader_drop_last", "--max_steps", "4",
                         "--overwrite_output_dir"}))
              .exit_code == 0);
  CHECK(records(f.output, "end").at(0)["rows_dropped"] == 10);
}

TEST_CASE("evaluation, checkpoints and the best model", "[train]") {
  const Fixture f;
  const RunResult result =
      run(f.command({"--eval_size", "5", "--eval_steps", "2", "--max_steps", "6", "--save_steps",
                     "2", "--save_total_limit", "1", "--load_best_model_at_end"}),
          {.ranks = 2});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::vector<Json> evals = records(f.output, "eval");
  REQUIRE(evals.size() == 3);
  double best = -1;
  int64_t best_step = 0;
  for (const Json& eval : evals) {
    CHECK(eval["accuracy"].get<double>() * 5 ==
          Approx(std::round(eval["accuracy"].get<double>() * 5)));
    if (eval["accuracy"] > best) {
      best = eval["accuracy"];
      best_step = eval["step"];
    }
  }
  CHECK(records(f.output, "start").at(0)["rows"] == 15);
  CHECK(records(f.output, "end").at(0)["best_step"] == best_step);
  if (best_step != 6)
    CHECK(maxim::read_text(f.output + "/model.safetensors") ==
          maxim::read_text(f.output + "/checkpoint-" + std::to_string(best_step) +
                           "/model.safetensors"));
}

TEST_CASE("a run into an old directory leaves none of its checkpoints' weights", "[train]") {
  const Fixture f;
  const auto checkpoint = [&](const char* rate) {
    const RunResult result = run(f.command({"--max_steps", "3", "--save_steps", "2",
                                            "--overwrite_output_dir", "--learning_rate", rate}));
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return maxim::read_text(f.output + "/checkpoint-2/model.safetensors");
  };
  CHECK(checkpoint("1e-3") != checkpoint("1e-4"));
}

TEST_CASE("a rate of 0 changes no weight", "[train]") {
  const Fixture f;
  REQUIRE(run(f.command({"--max_steps", "1", "--learning_rate", "0"})).exit_code == 0);
  const std::string again = f.directory.file("again");
  std::vector<std::string> command = f.command({"--max_steps", "1", "--learning_rate", "0"});
  command[2] = f.output;
  command[6] = again;
  REQUIRE(run(command).exit_code == 0);
  for (const char* file :
       {"/model.safetensors", "/1_Dense/model.safetensors", "/tokenizer.json",
        "/tokenizer_config.json", "/config.json", "/config_sentence_transformers.json"})
    CHECK(maxim::read_text(f.output + file) == maxim::read_text(again + file));
}

TEST_CASE("flags overrule what the checkpoint says and are saved", "[train]") {
  const Fixture f;
  REQUIRE(run(f.command({"--max_steps", "1", "--document_length", "20", "--query_prefix",
                         "[QueryMarker] "}))
              .exit_code == 0);
  const Json config =
      Json::parse(maxim::read_text(f.output + "/config_sentence_transformers.json"));
  CHECK(config["document_length"] == 20);
  CHECK(config["query_length"] == 16);
  CHECK(config["query_prefix"] == "[QueryMarker] ");
  CHECK(Json::parse(maxim::read_text(f.output + "/config.json"))["vocab_size"] == 1397);
}

TEST_CASE("a dry run writes nothing", "[train]") {
  const Fixture f;
  const RunResult result = run(f.command({"--dry_run"}));
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.find("step memory") != std::string::npos);
  CHECK_FALSE(fs::exists(f.output));
}

TEST_CASE("what only a GPU can do is refused on the CPU", "[train]") {
  const Fixture f;
  for (const char* flag : {"--tf32", "--bf16", "--fp16"}) {
    const RunResult result = run(f.command({flag, "--device", "cpu"}));
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(errors_of(result) == std::vector<std::string>{fmt::format(
                                   "error: {} needs a GPU; this run is on the CPU", flag)});
  }
}

TEST_CASE("a config file gives flags, and the command line overrules it", "[train]") {
  const Fixture f;
  const std::string config = f.directory.file("config.toml");
  maxim::write_text(config, "model_name_or_path = \"" + kModel + "\"\ntrain_file = \"" + f.rows +
                                "\"\noutput_dir = \"" + f.output + "\"\nmax_steps = 3\nseed = 7\n");
  const RunResult result = run({"./train", "--config", config, "--max_steps", "2"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(records(f.output, "start").at(0)["steps"] == 2);
  CHECK(records(f.output, "start").at(0)["seed"] == 7);
}

TEST_CASE("what was saved before is not lost by a refused run", "[train]") {
  const Fixture f;
  REQUIRE(run(f.command({"--max_steps", "1"})).exit_code == 0);
  const std::string model = maxim::read_text(f.output + "/model.safetensors");
  const std::string metrics = maxim::read_text(f.output + "/metrics.jsonl");
  CHECK(run(f.command({"--max_steps", "1"})).exit_code == 2);
  const RunResult refused =
      run(f.command({"--max_steps", "1", "--train_file", "no/such/file.tsv"}));
  CHECK(refused.exit_code == 2);
  CHECK(errors_of(refused)[0].find("--output_dir") != std::string::npos);  // before the rows
  CHECK(run(f.command({"--max_steps", "1", "--overwrite_output_dir", "--document_length", "900"}))
            .exit_code == 2);
  CHECK(maxim::read_text(f.output + "/model.safetensors") == model);
  CHECK(maxim::read_text(f.output + "/metrics.jsonl") == metrics);
}

namespace {

struct BadInput {
  const char* what;
  std::vector<std::string> flags;    // added; a flag given twice replaces the fixture's
  std::vector<std::string> message;  // words that the message has
  std::string file_text;             // written to rows.tsv when not empty
};

std::vector<BadInput> bad_inputs() {
  const std::string good = training_rows(4, 1);
  return {
      {"unknown flag", {"--learing_rate", "1"}, {"learing_rate", "learning_rate"}, ""},
      {"flag of a later version",
       {"--resume_from_checkpoint", "x"},
       {"resume_from_checkpoint"},
       ""},
      {"word for a number", {"--max_steps", "many"}, {"max_steps"}, ""},
      {"number with a tail",
       {"--per_device_train_batch_size", "32x"},
       {"per_device_train_batch_size"},
       ""},
      {"batch of 0", {"--per_device_train_batch_size", "0"}, {"per_device_train_batch_size"}, ""},
      {"negative rate", {"--learning_rate", "-1"}, {"learning_rate"}, ""},
      {"rate that overflows", {"--learning_rate", "1e999"}, {"learning_rate"}, ""},
      {"temperature 0", {"--temperature", "0"}, {"temperature"}, ""},
      {"norm that underflows", {"--max_grad_norm", "1e-46"}, {"max_grad_norm", "float32"}, ""},
      {"temperature NaN", {"--temperature", "nan"}, {"temperature"}, ""},
      {"dropout of 1", {"--hidden_dropout", "1"}, {"hidden_dropout"}, ""},
      {"unknown schedule", {"--lr_scheduler_type", "step"}, {"lr_scheduler_type"}, ""},
      {"unknown loss", {"--loss", "triplet"}, {"loss"}, ""},
      {"boolean that is none", {"--size_average", "maybe"}, {"size_average"}, ""},
      {"pattern that matches nothing", {"--learning_rate_mapping", "dense$=1e-3"}, {"dense$"}, ""},
      {"broken pattern", {"--learning_rate_mapping", "([=1e-3"}, {"(["}, ""},
      {"mapping without rate",
       {"--learning_rate_mapping", "1_Dense"},
       {"1_Dense", "regex=rate"},
       ""},
      {"warm-up twice", {"--warmup_steps", "3", "--warmup_ratio", "0.1"}, {"warmup_ratio"}, ""},
      {"best model without evaluation", {"--load_best_model_at_end"}, {"eval_file"}, ""},
      {"more held out than there is", {"--eval_size", "20"}, {"eval_size", "20 rows"}, ""},
      {"all the rows there are", {"--eval_size", "1e300"}, {"eval_size", "20 rows"}, ""},
      {"endless epochs", {"--num_train_epochs", "1e300"}, {"num_train_epochs"}, ""},
      {"endless batch",
       {"--per_device_train_batch_size", "4611686018427387904"},
       {"per_device_train_batch_size"},
       ""},
      {"rate beyond float32", {"--learning_rate", "1e300"}, {"learning_rate", "float32"}, ""},
      {"prefix that is no text", {"--query_prefix", "a\xff"}, {"query_prefix", "UTF-8"}, ""},
      {"unknown metric",
       {"--eval_size", "4", "--max_steps", "1", "--metric_for_best_model", "f1"},
       {"f1", "accuracy"},
       ""},
      {"document longer than the model", {"--document_length", "600"}, {"600", "256"}, ""},
      {"query without room", {"--query_length", "2"}, {"query_length"}, ""},
      {"missing model", {"--model_name_or_path", "no/such/model"}, {"no/such/model"}, ""},
      {"missing file", {"--train_file", "no/such/file.tsv"}, {"no/such/file.tsv"}, ""},
      {"missing config file", {"--config", "no/such.toml"}, {"no/such.toml"}, ""},
      {"missing evaluation set", {"--eval_beir_dir", "no/such/dir"}, {"no/such/dir"}, ""},
      {"output that cannot be", {"--output_dir", "/proc/nope/out"}, {"/proc/nope/out"}, ""},
      {"max_bad_rows without skip", {"--max_bad_rows", "3"}, {"bad_rows"}, ""},
      {"no device", {"--device", "tpu"}, {"device"}, ""},
      {"16 bits on the CPU", {"--bf16", "--device", "cpu"}, {"--bf16", "GPU"}, ""},
      {"two 16-bit types", {"--bf16", "--fp16"}, {"--bf16", "--fp16"}, ""},
      {"row with too few columns", {}, {"rows.tsv:5"}, good + "query\n"},
      {"row with too many columns", {}, {"rows.tsv:5"}, good + "a\tb\tc\td\n"},
      {"empty line", {}, {"rows.tsv:5"}, good + "\n" + good},
      {"invalid UTF-8", {}, {"rows.tsv:5", "UTF-8"}, good + "a\tb\xff\tc\n"},
      {"queries alone", {}, {"rows.tsv:1"}, "query\nquery\n"},
      {"UTF-16",
       {},
       {"UTF-16"},
       std::string("\xff\xfe"
                   "a\0\t\0b\0",
                   8)},
      {"too many bad rows",
       {"--bad_rows", "skip", "--max_bad_rows", "1"},
       {"rows.tsv"},
       good + "x\ny\n"},
  };
}

}  // namespace

TEST_CASE("bad input: one message that names it, exit code 2, at once", "[train][bad]") {
  for (const int ranks : {1, 3})
    for (const BadInput& bad : bad_inputs()) {
      const Fixture f;
      if (!bad.file_text.empty()) maxim::write_text(f.rows, bad.file_text);
      std::vector<std::string> command = f.command();
      for (size_t i = 0; i < bad.flags.size(); ++i) {
        const auto known = std::find(command.begin(), command.end(), bad.flags[i]);
        if (known != command.end() && i + 1 < bad.flags.size())
          *(known + 1) = bad.flags[++i];
        else
          command.push_back(bad.flags[i]);
      }
      const RunResult result = run(command, {.ranks = ranks});
      INFO(bad.what << ", " << ranks << " rank(s):\n" << result.err);
      CHECK(result.exit_code == 2);
      CHECK(result.seconds < 10);
      CHECK(count_of(result.err, "error: ") == 1);
      for (const std::string& word : bad.message) CHECK(result.err.find(word) != std::string::npos);
      CHECK_FALSE(fs::exists(f.output));
    }
}

TEST_CASE("a model that training broke is not saved over a good one", "[train]") {
  const Fixture f;
  REQUIRE(run(f.command({"--max_steps", "1"})).exit_code == 0);
  const std::string model = maxim::read_text(f.output + "/model.safetensors");
  for (const int ranks : {1, 2}) {
    const RunResult result = run(
        f.command({"--max_steps", "3", "--save_steps", "2", "--logging_steps", "1",
                   "--learning_rate", "1e38", "--max_grad_norm", "0", "--overwrite_output_dir"}),
        {.ranks = ranks});
    INFO(result.err);
    CHECK(result.exit_code == 1);
    CHECK(count_of(result.err, "error: ") == 1);
    CHECK(count_of(result.err, "warning: step 2: loss ") == 1);
    CHECK(count_of(result.err, "not saved") == 1);
    CHECK(maxim::read_text(f.output + "/model.safetensors") == model);
    CHECK_FALSE(fs::exists(f.output + "/checkpoint-2"));
  }
}

TEST_CASE("ranks that were given different things end with one message", "[train]") {
  const TemporaryDirectory own;  // where rank 1 finds its files, as on another host
  const std::string rows = "build/rows-of-ranks.tsv";
  maxim::write_text(rows, training_rows(20, 1));
  own.write(rows, training_rows(20, 1));
  fs::create_directories(own.file("tests/golden"));
  fs::copy(kModel, own.file(kModel), fs::copy_options::recursive);
  const auto refused = [&](const std::vector<std::string>& more, const std::string& word) {
    const std::vector<std::string> arguments = {
        "--model_name_or_path", kModel, "--train_file", rows, "--output_dir", own.file("out")};
    std::vector<std::string> command = {"mpirun", "--oversubscribe", "-np", "1", "./train"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    for (const std::string& word :
         {std::string(":"), std::string("-np"), std::string("1"), std::string("-wdir"), own.path(),
          fs::absolute("train").string()})
      command.push_back(word);
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.insert(command.end(), more.begin(), more.end());
    const RunResult result = run(command);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(count_of(result.err, "error: ") == 1);
    CHECK(count_of(result.err, "the ranks differ: rank 0 on ") == 1);
    CHECK(count_of(result.err, word) == 1);
  };
  refused({"--max_steps", "3"}, "has '--max_steps 3'");
  own.write(rows, training_rows(19, 1));
  refused({}, "has '" + rows + ": 19 rows");
  own.write(rows, training_rows(20, 1));
  own.write(kModel + "/vocab.txt", maxim::read_text(kModel + "/vocab.txt") + " ");
  refused({}, "rank 1 on " + maxim::host_name() + " has '" + kModel + "/vocab.txt: hash");
  fs::remove(rows);
}

TEST_CASE("records a step cost no memory, and bad rows for evaluation are told", "[train]") {
  const Fixture f;
  const std::string triplets = f.directory.write("eval.tsv", training_rows(5, 1) + "one column\n");
  const RunResult result =
      run(f.command({"--max_steps", "2", "--logging_steps", "9223372036854775807", "--bad_rows",
                     "skip", "--eval_file", triplets}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.find("eval.tsv:6") != std::string::npos);
  CHECK(records(f.output, "start").at(0)["eval_rows"] == 5);
  CHECK(records(f.output, "start").at(0)["eval_rows_rejected"] == 1);
}

// What the four programs share of their command lines: CLI11 run inside run_program, so that a
// wrong flag is one message (not one a rank) and exit code 2; `--config file.toml`, whose keys are
// the flags' names and which the command line overrules; `--help` and `--version`; validators that
// refuse what CLI11 lets through (NaN, infinity, 1e999, 32x, octal 010, numbers beyond 64 bits).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "comm/launch.h"
#include "runtime/staged_file.h"
#include "trainer/encode_texts.h"
#include "trainer/model_session.h"

namespace maxim {

constexpr const char* kVersion = "Maxim 0.1.0";

class CommandLine {
 public:
  // `program` is its name, `description` one line for --help.
  CommandLine(const std::string& program, const std::string& description);

  // Add options here: app().add_option("--top_k", top_k, "…")->group("Search")->check(…).
  CLI::App& app() { return app_; }

  // A flag that takes true or false, and alone means true. With std::optional it stays unset when
  // it is not given.
  CLI::Option* add_boolean(const std::string& name, bool& value, const std::string& description);
  CLI::Option* add_boolean(const std::string& name, std::optional<bool>& value,
                           const std::string& description);

  // The options that name a model and overrule what it says, in group "Model": --model_name_or_path
  // (required), --query_length, --document_length, --query_prefix, --document_prefix,
  // --do_query_expansion, --attend_to_expansion_tokens, --skiplist_words (separated by blanks),
  // --embedding_size, --seed; in group "Running" --device.
  void add_model_options(ModelOptions& options);

  // --per_device_eval_batch_size, in group "Evaluation".
  void add_eval_options(EncodeSettings& settings);

  // main's whole body: parses on every rank and runs `program`; see run_program for exit codes.
  // --help and --version print once and give 0. A wrong command line or config file is an
  // InputError; an unknown flag or key is answered with the most similar one; ranks that were given
  // different flags are refused.
  int run(int argc, char** argv, const std::function<int(World&)>& program);

 private:
  void parse(int argc, char** argv);
  std::string given_flags() const;  // one line each, with its values

  CLI::App app_;
  int timeout_ = kDefaultTimeout;  // run_program finds it for itself, before anything is parsed
};

// A whole number in decimal digits within [minimum, maximum].
CLI::Validator whole_number(int64_t minimum, int64_t maximum = std::numeric_limits<int64_t>::max());
// A finite number; > minimum, or >= minimum, or within [minimum, maximum].
CLI::Validator number_above(double minimum);
CLI::Validator number_from(double minimum);
CLI::Validator number_between(double minimum, double maximum);
// Text that can be saved as JSON.
CLI::Validator valid_utf8();

// Where rank 0 writes a result file: staged, so that it appears whole or not at all. Null on the
// other ranks, and when `path` is empty. Call it before the work: a wrong place is an InputError on
// all ranks, and so is one of `inputs`, files that the program reads. Collective.
std::unique_ptr<StagedFile> stage_output(const std::string& path,
                                         const std::vector<std::string>& inputs,
                                         Communicator& communicator);

}  // namespace maxim

#include "trainer/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <vector>

#include "data/text_lines.h"
#include "runtime/error.h"

namespace maxim {
namespace {

// Edits (insert, delete, replace) from one word to the other: Levenshtein's distance.
int64_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = std::exchange(row[0], static_cast<int64_t>(i));
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// What to say of a flag that does not exist: the most similar one, if any is.
std::string suggestion(const CLI::App& app, const std::string& unknown) {
  std::string key = unknown.substr(0, unknown.find('='));
  key.erase(0, key.find_first_not_of('-'));
  std::replace(key.begin(), key.end(), '-', '_');
  // Up to a third of the letters may differ: learing_rate is learning_rate, batch_size is not seed.
  int64_t best = static_cast<int64_t>(key.size()) / 3 + 1;
  std::string nearest;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const int64_t distance = edit_distance(key, name);
      if (distance >= best) continue;
      best = distance;
      nearest = name;
    }
  }
  return nearest.empty() ? "--help lists the flags" : fmt::format("did you mean --{}?", nearest);
}

// CLI11 2.1's config reader with its faults mended: it takes a # inside quotes for a comment, and
// an unclosed quote for a part of the value. An unknown key is reported with the most similar flag.
class ConfigReader : public CLI::ConfigBase {
 public:
  explicit ConfigReader(const CLI::App& app) : app_(app) { comment('\0'); }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::stringstream text;
    int64_t number = 0;
    for (std::string line; std::getline(input, line);)
      text << without_comment(line, ++number) << '\n';
    std::vector<CLI::ConfigItem> items = ConfigBase::from_config(text);
    for (const CLI::ConfigItem& item : items) {
      if (!item.parents.empty())
        fail_input("{}: [{}]: there are no sections, only keys", file(), item.parents.front());
      const CLI::Option* option = app_.get_option_no_throw("--" + item.name);
      if (option == nullptr)
        fail_input("{}: unknown key '{}'; {}", file(), item.name, suggestion(app_, item.name));
      if (!option->get_configurable())
        fail_input("{}: {} belongs on the command line", file(), item.name);
    }
    return items;
  }

 private:
  std::string file() const { return app_.get_config_ptr()->results().front(); }

  // Also refuses what TOML has and CLI11 reads as something else.
  std::string without_comment(const std::string& line, int64_t number) const {
    const auto refuse = [&](const char* reason) {
      fail_input("{}: line {}: {}: {}", file(), number, reason, line);
    };
    char quote = 0;
    int lists = 0;  // that are open
    size_t i = 0;
    for (; i < line.size() && (quote != 0 || line[i] != '#'); ++i) {
      if (quote == 0 && (line.compare(i, 3, "\"\"\"") == 0 || line.compare(i, 3, "'''") == 0))
        refuse("three quotes are not supported, write one");
      if (quote == '"' && line[i] == '\\')
        refuse("a backslash needs single quotes, in which it stands for itself");
      if (quote == 0) lists += (line[i] == '[') - (line[i] == ']');
      if (quote == 0 && (line[i] == '"' || line[i] == '\'')) {
        quote = line[i];
      } else if (line[i] == quote) {
        quote = 0;
      }
    }
    if (quote != 0) refuse("a quote is not closed");
    if (lists > 0) refuse("a list has to end on the line on which it begins");
    return line.substr(0, i);
  }

  const CLI::App& app_;
};

// The whole of `text` as a T, or nothing.
template <class T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// The check of a finite number for which `accept` holds; `wanted` completes "… is not ".
template <class Accept>
CLI::Validator number(const std::string& wanted, Accept accept) {
  CLI::Validator validator("");
  validator.operation([=](std::string& text) {
    const auto value = parse_number<double>(text);
    const bool good = value && std::isfinite(*value) && accept(*value);
    return good ? std::string() : fmt::format("'{}' is not {}", text, wanted);
  });
  return validator;
}

CLI::Option* add_boolean_option(CLI::App& app, const std::string& name,
                                const std::function<void(bool)>& set,
                                const std::string& description) {
  CLI::Validator check("");
  check.operation([](std::string& text) {
    const bool good = text == "true" || text == "false";
    return good ? std::string() : fmt::format("'{}' is neither true nor false", text);
  });
  // CLI11 hands over "" when the flag stands alone.
  return app
      .add_option_function<std::string>(
          name, [set](const std::string& text) { set(text != "false"); }, description)
      ->expected(0, 1)
      ->check(check)
      ->type_name("[true|false]");
}

// CLI11 would wait for somebody to write into a pipe.
CLI::Validator regular_file() {
  CLI::Validator validator("");
  validator.operation([](std::string& path) {
    std::error_code error;
    const bool good = std::filesystem::is_regular_file(path, error);
    return good ? std::string() : fmt::format("{}: not a regular file", path);
  });
  return validator;
}

}  // namespace

CLI::Validator whole_number(int64_t minimum, int64_t maximum) {
  const bool bounded = maximum != std::numeric_limits<int64_t>::max();
  const std::string wanted = bounded ? fmt::format("a whole number from {} to {}", minimum, maximum)
                                     : fmt::format("a whole number, {} or more", minimum);
  CLI::Validator validator("");
  validator.operation([=](std::string& text) {
    const auto value = parse_number<int64_t>(text);
    // Compared with the text again since CLI11 would read 010 as octal.
    const bool good =
        value && *value >= minimum && *value <= maximum && std::to_string(*value) == text;
    return good ? std::string() : fmt::format("'{}' is not {}", text, wanted);
  });
  return validator;
}

CLI::Validator number_above(double minimum) {
  return number(fmt::format("a number above {}", minimum),
                [=](double value) { return value > minimum; });
}

CLI::Validator number_from(double minimum) {
  return number(fmt::format("a number, {} or more", minimum),
                [=](double value) { return value >= minimum; });
}

CLI::Validator number_between(double minimum, double maximum) {
  return number(fmt::format("a number from {} to {}", minimum, maximum),
                [=](double value) { return value >= minimum && value <= maximum; });
}

CLI::Validator valid_utf8() {
  CLI::Validator validator("");
  validator.operation([](std::string& text) {
    const int64_t invalid = find_invalid_utf8(text);
    return invalid < 0
               ? std::string()
               : fmt::format("'{}' is not valid UTF-8 at byte {}", excerpt(text, 60), invalid + 1);
  });
  return validator;
}

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : app_(description, program) {
  app_.option_defaults()->always_capture_default();
  app_.get_help_ptr()->group("General");
  app_.set_version_flag("--version", kVersion, "Print the version and exit")->group("General");
  app_.set_config("--config", "", "TOML file; its keys are the names of these flags")
      ->check(regular_file())
      ->group("General");
  app_.add_option("--timeout", timeout_,
                  "Seconds that the ranks wait for each other, and for one that is silent or hangs")
      ->check(whole_number(1, kLongestTimeout))
      ->configurable(false)  // no file has been read when the ranks meet
      ->group("Running");
  app_.config_formatter(std::make_shared<ConfigReader>(app_));
  app_.get_formatter()->column_width(42);
}

CLI::Option* CommandLine::add_boolean(const std::string& name, bool& value,
                                      const std::string& description) {
  return add_boolean_option(
      app_, name, [&value](bool given) { value = given; },
      fmt::format("{} [{}]", description, value));
}

CLI::Option* CommandLine::add_boolean(const std::string& name, std::optional<bool>& value,
                                      const std::string& description) {
  return add_boolean_option(
      app_, name, [&value](bool given) { value = given; }, description);
}

void CommandLine::add_model_options(ModelOptions& options) {
  ModelOverrides& overrides = options.overrides;
  const auto add = [&](const char* name, auto& value, const char* description) {
    return app_.add_option(name, value, description)->group("Model");
  };
  add("--model_name_or_path", options.model_name_or_path,
      "Directory of a BERT, sentence-transformers, PyLate or ColBERT model")
      ->required();
  add("--query_length", overrides.query_length, "Tokens of a query [the model's, or 32]")
      ->check(whole_number(1));
  add("--document_length", overrides.document_length,
      "Tokens of a document at most [the model's, or 180]")
      ->check(whole_number(1));
  add("--query_prefix", overrides.query_prefix,
      "Token put before queries, '' for none [the model's, or '[Q] ']")
      ->check(valid_utf8());
  add("--document_prefix", overrides.document_prefix,
      "Token put before documents, '' for none [the model's, or '[D] ']")
      ->check(valid_utf8());
  add_boolean("--do_query_expansion", overrides.do_query_expansion,
              "Fill queries up with [MASK] tokens [the model's, or true]")
      ->group("Model");
  add_boolean("--attend_to_expansion_tokens", overrides.attend_to_expansion_tokens,
              "Let query tokens attend to these [MASK] tokens [the model's, or false]")
      ->group("Model");
  app_.add_option_function<std::string>(
          "--skiplist_words",
          [&overrides](const std::string& text) {
            std::istringstream stream(text);
            overrides.skiplist_words.emplace(std::istream_iterator<std::string>(stream),
                                             std::istream_iterator<std::string>());
          },
          "Words left out of documents' scores, separated by blanks, '' for none [the model's, or "
          "punctuation]")
      ->check(valid_utf8())
      ->group("Model");
  add("--embedding_size", overrides.embedding_size,
      "Width of a new projection [the model's, or 128]")
      ->check(whole_number(1, 65536));
  add("--seed", options.seed, "Of all random numbers, such as those of a new projection")
      ->check(whole_number(0));
  app_.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->group("Running");
}

void CommandLine::add_eval_options(EncodeSettings& settings) {
  app_.add_option("--per_device_eval_batch_size", settings.batch_size,
                  "Texts encoded at a time, for memory and speed only")
      ->group("Evaluation")
      ->check(whole_number(1));
}

void CommandLine::parse(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::Success&) {
    throw;  // --help, --version
  } catch (const CLI::ParseError& error) {
    // A misspelt flag is often also a missing one.
    const std::vector<std::string> unknown = app_.remaining();
    if (unknown.empty()) fail_input("{}: {}", app_.get_name(), error.what());
    const auto flag = std::find_if(unknown.begin(), unknown.end(),
                                   [](const std::string& word) { return word[0] == '-'; });
    if (flag == unknown.end())
      fail_input("{}: unexpected argument '{}'", app_.get_name(), unknown.front());
    fail_input("{}: unknown flag {}; {}", app_.get_name(), *flag, suggestion(app_, *flag));
  }
}

int CommandLine::run(int argc, char** argv, const std::function<int(World&)>& program) {
  return run_program(argc, argv, [&](World& world) {
    try {
      parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      if (world.rank == 0) fmt::print("{}", app_.help());
      return 0;
    } catch (const CLI::CallForVersion&) {
      if (world.rank == 0) fmt::print("{}\n", kVersion);
      return 0;
    }
    world.communicator->demand_same(given_flags());
    return program(world);
  });
}

std::string CommandLine::given_flags() const {
  std::string lines;
  for (const CLI::Option* option : app_.get_options())
    if (option->count() > 0 && option != app_.get_config_ptr())
      lines +=
          fmt::format("{} {}\n", option->get_name(), CLI::detail::join(option->results(), " "));
  return lines;
}

std::unique_ptr<StagedFile> stage_output(const std::string& path,
                                         const std::vector<std::string>& inputs,
                                         Communicator& communicator) {
  std::unique_ptr<StagedFile> file;
  if (path.empty()) return file;
  communicator.checked([&] {
    if (communicator.rank() != 0) return;
    std::error_code error;  // what does not exist is another's to report
    for (const std::string& input : inputs)
      if (std::filesystem::equivalent(path, input, error))
        fail_input("--output_file {}: the program reads it, and would lose it", path);
    file = std::make_unique<StagedFile>(path);
  });
  return file;
}

}  // namespace maxim

// bench/kernels: the operations of one backend, verified, then timed at the shapes of training; see
// operations.h. Under the emulator there are no times, only the counters.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <regex>

#include "bench/kernels/report.h"
#include "kernels/backend.h"

namespace maxim::bench {
namespace {

struct Options {
  std::string device = "auto", type = "f32", operation, json;
  // A triplet of MS MARCO has about 198 tokens: batches of 10 (a CPU's), 80 and 330 triplets.
  std::vector<int64_t> tokens = {2048, 16384, 65536};
  int repetitions = 7;
};

// What the emulator does in about a second. Counters are sums over a shape: larger ones say no
// more.
constexpr double kMostEmulatedBytes = 16e6, kMostEmulatedFlops = 0.5e9;

DType type_of(const std::string& name) {
  return name == "bf16" ? DType::bf16 : name == "f16" ? DType::f16 : DType::f32;
}

std::vector<Operation> operations_of(const Options& options) {
  const Settings settings{.type = type_of(options.type), .tokens = options.tokens};
  std::vector<Operation> chosen;
  try {
    const std::regex wanted(options.operation);
    for (const auto& make :
         {gemm_operations, layer_norm_operations, embedding_operations, row_operations,
          attention_operations, loss_operations, optimizer_operations})
      for (Operation& operation : make(settings))
        if (std::regex_search(operation.name, wanted)) chosen.push_back(std::move(operation));
  } catch (const std::regex_error& error) {
    fail_input("--operation '{}': {}", options.operation, error.what());
  }
  if (chosen.empty()) fail_input("--operation '{}': no such operation", options.operation);
  return chosen;
}

class Bench {
 public:
  Bench(Ops& ops, const Options& options)
      : ops_(ops),
        options_(options),
        type_(type_of(options.type)),
        emulated_(is_emulated(ops.device())),
        report_(ops, type_, options.json) {}

  // Whether all results were right.
  bool run(const std::vector<Operation>& operations) {
    std::optional<Limits> limits;
    if (!emulated_) limits = measure_limits(ops_, type_, options_.repetitions);
    counts_ = emulated_ || !ops_.counts().empty();
    report_.print_head(limits, counts_);
    bool right = true;
    for (const Operation& operation : operations) {
      const bool verified = verify(operation);
      for (const Case& work : operation.real) {
        if (verified)
          time(operation, work);
        else
          report_.print(operation, work, "WRONG");
      }
      right = right && verified;
    }
    return right;
  }

 private:
  // Holds the small shapes against the reference. Their counters are the emulator's first rows.
  bool verify(const Operation& operation) {
    bool right = true;
    for (const Case& work : operation.small) {
      std::string wrong;
      try {
        Operands operands(ops_, type_, memory_budget(ops_.device()));
        const Problem problem = work.make(operands);
        const KernelCount counted = count(ops_, problem);
        wrong = difference(operands, problem.expected(), operation.precision);
        if (wrong.empty() && emulated_)
          report_.print({.operation = operation, .work = work, .timing = {}, .counted = counted});
      } catch (const std::exception& error) {
        wrong = error.what();
      }
      if (wrong.empty()) continue;
      report_.print(operation, work, "WRONG: " + wrong);
      right = false;
    }
    return right;
  }

  void time(const Operation& operation, const Case& work) {
    if (emulated_ && (work.bytes > kMostEmulatedBytes || work.flops > kMostEmulatedFlops))
      return report_.print(operation, work, "left out: too much for the emulator");
    try {
      Operands operands(ops_, type_, memory_budget(ops_.device()));
      const Problem problem = work.make(operands);
      const KernelCount counted = counts_ ? count(ops_, problem) : KernelCount();
      std::optional<Timing> timing;
      if (!emulated_) timing = measure(ops_.device(), problem, options_.repetitions);
      report_.print({.operation = operation, .work = work, .timing = timing, .counted = counted});
    } catch (const NoRoom& error) {
      report_.print(operation, work, fmt::format("left out: {}", error.what()));
    }
  }

  Ops& ops_;
  const Options& options_;
  DType type_;
  bool emulated_;
  bool counts_ = false;  // whether the backend counts
  Report report_;
};

int run(const Options& options) {
  const std::vector<Operation> operations = operations_of(options);
  const Backend backend = make_backend(options.device, false);
  if (backend.device->name() == "cpu" && options.type != "f32")
    fail_input("--type {}: the CPU computes in f32", options.type);
  if (Bench(*backend.ops, options).run(operations)) return 0;
  fmt::print("some results are WRONG\n");
  return 1;
}

}  // namespace
}  // namespace maxim::bench

int main(int argc, char** argv) {
  maxim::bench::Options options;
  CLI::App app("Verifies and times the operations of kernels/ops.h.");
  app.add_option("--device", options.device, "auto: a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--type", options.type, "Float type of activations")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_option("--operation", options.operation, "Regular expression that names must match");
  app.add_option("--tokens", options.tokens, "Rows of a batch: 2048,16384,65536")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--repeat", options.repetitions, "Repetitions a row: the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", options.json, "File to append a line a row to");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return maxim::bench::run(options);
  } catch (const maxim::InputError& error) {
    fmt::print(stderr, "bench/kernels: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench/kernels: {}\n", error.what());
    return 1;
  }
}

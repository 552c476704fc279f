#include "bench/kernels/report.h"

#include <omp.h>
#include <stdlib.h>

#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

namespace maxim::bench {
namespace {

// "cpu" says little: the processor's name and the threads with it.
std::string machine_of(const Device& device) {
  if (device.name() != "cpu") return device.name();
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return fmt::format("cpu {}, {} threads", line.substr(line.find(": ") + 2),
                         omp_get_max_threads());
  return fmt::format("cpu, {} threads", omp_get_max_threads());
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&time));
  return text;
}

std::string load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? fmt::format("load average {:.2f}", load) : "load unknown";
}

void print_name(const std::string& operation, const std::string& shape) {
  fmt::print("{:<25} {:<49}", operation, shape);
}

}  // namespace

Report::Report(Ops& ops, DType type, const std::string& json_path)
    : machine_(machine_of(ops.device())), type_(name_of(type)), date_(now()) {
  fmt::print("{}, {}, {}, {}, {}\n", machine_, ops.gemm_library(), type_, date_, load_average());
  if (json_path.empty()) return;
  json_.open(json_path, std::ios::app);
  if (!json_) fail_input("--json {}: cannot be written", json_path);
}

void Report::print_head(const std::optional<Limits>& limits, bool counts) {
  limits_ = limits;
  counts_ = counts;
  if (limits)
    fmt::print(
        "limits of this run: copy {:.1f} GB/s read + written ({} MB), gemm {:.3f} TFLOP/s ({} "
        "cubed)\n",
        limits->copy_rate / 1e9, limits->copy_bytes >> 20, limits->gemm_rate / 1e12,
        limits->gemm_size);
  print_name("operation", "shape");
  if (limits)
    fmt::print("{:>11} {:>7} {:>8} {:>8} {:>6}", "ms", "spread", "GB/s", "TFLOP/s", "share");
  if (counts) fmt::print("{:>9} {:>10} {:>10} {:>7}", "launches", "MB", "least MB", "ratio");
  fmt::print("\n");
}

void Report::print(const Row& row) {
  print_name(row.operation.name, row.work.shape);
  if (row.timing) {
    const double seconds = row.timing->seconds;
    const std::string rate =
        row.work.flops == 0 ? "-" : fmt::format("{:.3f}", row.work.flops / seconds / 1e12);
    fmt::print("{:>11.4f} {:>6.1f}% {:>8.1f} {:>8} {:>5.0f}%", seconds * 1e3,
               row.timing->spread * 100, row.work.bytes / seconds / 1e9, rate,
               limits_->share(row.work, seconds) * 100);
  }
  if (counts_)
    fmt::print("{:>9} {:>10.3f} {:>10.3f} {:>7.2f}", row.counted.launches, row.counted.bytes / 1e6,
               row.work.bytes / 1e6, row.counted.bytes / row.work.bytes);
  fmt::print("\n");
  std::fflush(stdout);
  if (json_.is_open()) write_json(row);
}

void Report::print(const Operation& operation, const Case& work, const std::string& instead) {
  print_name(operation.name, work.shape);
  fmt::print("  {}\n", instead);
  std::fflush(stdout);
}

void Report::write_json(const Row& row) {
  nlohmann::ordered_json line = {{"date", date_},           {"device", machine_},
                                 {"type", type_},           {"operation", row.operation.name},
                                 {"shape", row.work.shape}, {"bytes", row.work.bytes},
                                 {"flops", row.work.flops}};
  if (row.timing) {
    line["seconds"] = row.timing->seconds;
    line["spread"] = row.timing->spread;
    line["share"] = limits_->share(row.work, row.timing->seconds);
    line["limits"] = {{"copy_bytes_per_second", limits_->copy_rate},
                      {"gemm_flops_per_second", limits_->gemm_rate}};
  }
  if (counts_) {
    line["launches"] = row.counted.launches;
    line["declared_bytes"] = row.counted.bytes;
    line["declared_flops"] = row.counted.flops;
  }
  json_ << line.dump() << std::endl;
}

}  // namespace maxim::bench

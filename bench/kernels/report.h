// The table on standard output, and a JSON line a row.
#pragma once

#include <fstream>
#include <optional>
#include <string>

#include "bench/kernels/measure.h"

namespace maxim::bench {

// One operation at one shape. What was not measured is absent.
struct Row {
  const Operation& operation;
  const Case& work;
  std::optional<Timing> timing;
  KernelCount counted;  // no launches: the backend does not count
};

class Report {
 public:
  // Appends to `json_path`, where it is not empty; throws InputError when that cannot be written.
  Report(Ops& ops, DType type, const std::string& json_path);

  // The machine, its load and, where times are measured, the limits; then the titles.
  void print_head(const std::optional<Limits>& limits, bool counts);
  void print(const Row& row);
  // A row without figures: "WRONG", or why it was left out.
  void print(const Operation& operation, const Case& work, const std::string& instead);

 private:
  void write_json(const Row& row);

  std::string machine_, type_, date_;
  std::optional<Limits> limits_;
  bool counts_ = false;
  std::ofstream json_;
};

}  // namespace maxim::bench

// output_dir/metrics.jsonl: one JSON object a record, flushed at once, so that a kill loses at most
// the record being written. Numbers that are not finite are written as null, since JSON has no NaN.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/files.h"

namespace maxim {

class MetricsLog {
 public:
  // An empty path writes nothing (ranks other than 0).
  explicit MetricsLog(const std::string& path);
  void write(const nlohmann::ordered_json& record);

 private:
  std::unique_ptr<OutputFile> file_;
};

}  // namespace maxim

#include "trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/error.h"

namespace maxim {

const std::vector<std::string>& schedule_types() {
  static const std::vector<std::string> types = {"linear", "cosine", "constant",
                                                 "constant_with_warmup"};
  return types;
}

double learning_rate_factor(const Schedule& schedule, int64_t step) {
  if (schedule.type == "constant") return 1;
  const double warmup = static_cast<double>(schedule.warmup_steps);
  if (step < schedule.warmup_steps) return static_cast<double>(step + 1) / (warmup + 1);
  if (schedule.type == "constant_with_warmup") return 1;
  const double span = std::max(1.0, static_cast<double>(schedule.total_steps) - warmup);
  const double done = std::clamp((static_cast<double>(step) - warmup) / span, 0.0, 1.0);
  if (schedule.type == "linear") return 1 - done;
  MAXIM_CHECK(schedule.type == "cosine", "schedule {}", schedule.type);
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace maxim

// Learning-rate schedules with Hugging Face's names. The factor multiplies the peak rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace maxim {

struct Schedule {
  std::string type = "linear";  // one of schedule_types()
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
};

// linear, cosine, constant, constant_with_warmup
const std::vector<std::string>& schedule_types();

// Factor of optimizer step `step` (0-based). Warm-up rises as (step + 1) / (warmup + 1): the peak
// comes at the same step as Hugging Face's step / warmup, but the first step is not wasted at rate
// 0. Afterwards linear falls as (total - step) / (total - warmup), cosine as half a cosine over the
// same span. "constant" has no warm-up.
double learning_rate_factor(const Schedule& schedule, int64_t step);

}  // namespace maxim

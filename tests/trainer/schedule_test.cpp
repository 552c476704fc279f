#include "trainer/schedule.h"

#include <cmath>

#include "tests/catch.h"

using maxim::learning_rate_factor;
using maxim::Schedule;

TEST_CASE("linear schedule by hand", "[schedule]") {
  const Schedule schedule{.type = "linear", .warmup_steps = 2, .total_steps = 6};
  const double expected[] = {1.0 / 3, 2.0 / 3, 1, 0.75, 0.5, 0.25};
  for (int step = 0; step < 6; ++step)
    CHECK(learning_rate_factor(schedule, step) == Approx(expected[step]).epsilon(1e-12));
  CHECK(learning_rate_factor(schedule, 6) == 0);
}

TEST_CASE("the first step is never wasted and the peak stands where Hugging Face has it",
          "[schedule]") {
  for (const std::string& type : maxim::schedule_types())
    for (const int warmup : {0, 1, 7}) {
      const Schedule schedule{.type = type, .warmup_steps = warmup, .total_steps = 20};
      INFO(type << ", warm-up " << warmup);
      CHECK(learning_rate_factor(schedule, 0) > 0);
      CHECK(learning_rate_factor(schedule, warmup) == Approx(1));
    }
}

TEST_CASE("cosine and constant schedules by hand", "[schedule]") {
  const Schedule cosine{.type = "cosine", .warmup_steps = 0, .total_steps = 4};
  CHECK(learning_rate_factor(cosine, 0) == Approx(1));
  CHECK(learning_rate_factor(cosine, 1) == Approx(0.5 + std::sqrt(0.125)));
  CHECK(learning_rate_factor(cosine, 2) == Approx(0.5));
  CHECK(learning_rate_factor(cosine, 4) == Approx(0).margin(1e-12));
  const Schedule constant{.type = "constant", .warmup_steps = 3, .total_steps = 4};
  CHECK(learning_rate_factor(constant, 0) == 1);
  const Schedule warm{.type = "constant_with_warmup", .warmup_steps = 3, .total_steps = 4};
  CHECK(learning_rate_factor(warm, 0) == Approx(0.25));
  CHECK(learning_rate_factor(warm, 3) == 1);
}

TEST_CASE("warm-up as long as the run divides by nothing", "[schedule]") {
  const Schedule schedule{.type = "linear", .warmup_steps = 5, .total_steps = 5};
  for (int step = 0; step <= 5; ++step) CHECK(std::isfinite(learning_rate_factor(schedule, step)));
}

#include "trainer/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace maxim {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string clock_time(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

ProgressBar::ProgressBar(int64_t total_steps, bool visible)
    : total_(total_steps),
      visible_(visible),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() { clear(); }

std::string ProgressBar::line(int64_t step, double loss) const {
  const double elapsed = seconds_since(start_);
  const double rate = static_cast<double>(step) / std::max(elapsed, 1e-9);
  return fmt::format("{:3.0f}% {}/{} [{}<{}, {:.2f} steps/s] loss {:.4f}",
                     100.0 * static_cast<double>(step) / static_cast<double>(total_), step, total_,
                     clock_time(elapsed),
                     clock_time(static_cast<double>(total_ - step) / std::max(rate, 1e-9)), rate,
                     loss);
}

void ProgressBar::advance(int64_t step, double loss) {
  if (!visible_ || !terminal_) return;
  if (step != total_ && seconds_since(last_) < 0.1) return;
  last_ = std::chrono::steady_clock::now();
  std::fprintf(stderr, "\r%s\033[K", line(step, loss).c_str());  // \033[K clears to the line's end
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::report(int64_t step, double loss, double learning_rate, double rows_per_second) {
  if (!visible_ || terminal_) return;
  std::fprintf(stderr, "%s\n",
               fmt::format("{}, learning rate {:.3g}, {:.1f} rows/s", line(step, loss),
                           learning_rate, rows_per_second)
                   .c_str());
}

void ProgressBar::clear() {
  if (drawn_) std::fputc('\n', stderr);
  drawn_ = false;
}

}  // namespace maxim

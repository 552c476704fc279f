// One line on standard error: step, rate, time left, loss. On a terminal it is redrawn in place;
// elsewhere a plain line is printed at each report, without carriage returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace maxim {

class ProgressBar {
 public:
  // Nothing is printed when `visible` is false (ranks other than 0).
  ProgressBar(int64_t total_steps, bool visible);
  ~ProgressBar();

  // After each step: redraws on a terminal, at most ten times a second.
  void advance(int64_t step, double loss);
  // At each log record: a plain line where there is no terminal.
  void report(int64_t step, double loss, double learning_rate, double rows_per_second);
  // Ends the line that is being redrawn, so that other messages start on their own.
  void clear();

 private:
  std::string line(int64_t step, double loss) const;

  int64_t total_;
  bool visible_, terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace maxim

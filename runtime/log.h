// Messages for people, on standard error, by spdlog: information and warnings from rank 0 only,
// unless a rank speaks for itself.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace maxim {

// Called once by comm/launch; before it, messages are printed as those of a single process.
void set_up_log(int rank);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}

}  // namespace maxim

#include "runtime/log.h"

#include <spdlog/sinks/stdout_sinks.h>

namespace maxim {

void set_up_log(int rank) {
  auto logger =
      std::make_shared<spdlog::logger>("maxim", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%l: %v");
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::off);
  spdlog::set_default_logger(logger);
}

}  // namespace maxim

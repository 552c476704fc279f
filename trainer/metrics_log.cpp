#include "trainer/metrics_log.h"

namespace maxim {

MetricsLog::MetricsLog(const std::string& path) {
  if (!path.empty()) file_ = std::make_unique<OutputFile>(path);
}

void MetricsLog::write(const nlohmann::ordered_json& record) {
  if (file_ == nullptr) return;
  // dump() writes NaN and infinity as null.
  file_->write(record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
               "\n");
  file_->flush();
}

}  // namespace maxim

// Reads the keys of one JSON configuration file; every complaint is an InputError that names the
// file and the key. A key that is null counts as absent.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace maxim {

class ConfigReader {
 public:
  explicit ConfigReader(const std::string& file);  // must hold a JSON object
  const std::string& file() const { return file_; }
  const nlohmann::ordered_json& json() const { return json_; }
  bool has(const char* key) const;

  // A whole number from 1 to `most`.
  int64_t size(const char* key, int64_t most) const;
  int64_t size(const char* key, int64_t most, int64_t otherwise) const;
  // A number from 0 to below `below`.
  float number(const char* key, float below, float otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  std::vector<std::string> texts(const char* key, const std::vector<std::string>& otherwise) const;
  // The key must be absent or have this value; `why` ends the message.
  void require(const char* key, const nlohmann::ordered_json& value, const char* why) const;

 private:
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

  std::string file_;
  nlohmann::ordered_json json_;
};

}  // namespace maxim

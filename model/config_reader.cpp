#include "model/config_reader.h"

#include "runtime/error.h"
#include "runtime/files.h"

namespace maxim {

using Json = nlohmann::ordered_json;

ConfigReader::ConfigReader(const std::string& file) : file_(file), json_(read_json(file)) {
  if (!json_.is_object()) fail_input("{}: expected a JSON object", file);
}

bool ConfigReader::has(const char* key) const {
  return json_.contains(key) && !json_.at(key).is_null();
}

void ConfigReader::refuse(const char* key, const std::string& expected) const {
  fail_input("{}: {} is {}, expected {}", file_, key, json_.at(key).dump(), expected);
}

int64_t ConfigReader::size(const char* key, int64_t most) const {
  if (!has(key)) fail_input("{}: {} is missing", file_, key);
  const Json& value = json_.at(key);
  if (!value.is_number_integer() || value.get<double>() < 1 ||
      value.get<double>() > static_cast<double>(most))
    refuse(key, fmt::format("a whole number from 1 to {}", most));
  return value.get<int64_t>();
}

int64_t ConfigReader::size(const char* key, int64_t most, int64_t otherwise) const {
  return has(key) ? size(key, most) : otherwise;
}

float ConfigReader::number(const char* key, float below, float otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = json_.at(key);
  const float number = value.is_number() ? value.get<float>() : -1;
  if (!(number >= 0 && number < below))
    refuse(key, fmt::format("a number from 0 to below {}", below));
  return number;
}

bool ConfigReader::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!json_.at(key).is_boolean()) refuse(key, "true or false");
  return json_.at(key).get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!json_.at(key).is_string()) refuse(key, "a string");
  return json_.at(key).get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const char* key,
                                             const std::vector<std::string>& otherwise) const {
  if (!has(key)) return otherwise;
  std::vector<std::string> values;
  const Json& list = json_.at(key);
  if (!list.is_array()) refuse(key, "a list of strings");
  for (const Json& value : list) {
    if (!value.is_string()) refuse(key, "a list of strings");
    values.push_back(value.get<std::string>());
  }
  return values;
}

void ConfigReader::require(const char* key, const Json& value, const char* why) const {
  if (has(key) && json_.at(key) != value) refuse(key, value.dump() + ": " + why);
}

}  // namespace maxim

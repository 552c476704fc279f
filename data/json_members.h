// Members of JSON objects, with errors that name the file, the object and the member.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "runtime/error.h"

namespace maxim {

// The member `key` of `object`, which messages call `name`: a bool, a std::string or an int64_t,
// which may not be negative. Throws InputError when it is missing or of another type.
template <class T>
T json_member(const nlohmann::ordered_json& object, const char* name, const char* key,
              const std::string& path) {
  const auto found = object.find(key);
  if (found == object.end()) fail_input("{}: {} has no member \"{}\"", path, name, key);
  bool right = false;
  const char* expected = "";
  if constexpr (std::is_same_v<T, bool>) {
    right = found->is_boolean(), expected = "true or false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    right = found->is_string(), expected = "a string";
  } else {
    static_assert(std::is_same_v<T, int64_t>);
    right = found->is_number_unsigned() && found->template get<uint64_t>() <= INT64_MAX;
    expected = "a whole number that is not negative";
  }
  if (!right)
    fail_input("{}: \"{}\" of {} is {}, not {}", path, key, name, found->dump(), expected);
  return found->template get<T>();
}

template <class T>
T json_member_or(T fallback, const nlohmann::ordered_json& object, const char* name,
                 const char* key, const std::string& path) {
  return object.contains(key) ? json_member<T>(object, name, key, path) : fallback;
}

}  // namespace maxim

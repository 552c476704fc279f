// The message of an expected exception.
#pragma once

#include <fmt/format.h>

#include <string>
#include <typeinfo>

#include "tests/catch.h"

namespace maxim_tests {

// What the Expected thrown by `work` says; "nothing was thrown" when there is none. Another
// exception than exactly Expected fails the test.
template <class Expected, class Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Expected& error) {
    if (typeid(error) != typeid(Expected)) FAIL("another type of error: " << error.what());
    return error.what();
  }
  return "nothing was thrown";
}

// Demands that the Expected thrown by `work` says all of `words`.
template <class Expected, class Work>
void require_message(const Work& work, const std::vector<std::string>& words) {
  const std::string message = message_of<Expected>(work);
  INFO("message: " << message);
  for (const std::string& word : words) {
    INFO("expected: " << word);
    CHECK(message.find(word) != std::string::npos);
  }
}

}  // namespace maxim_tests

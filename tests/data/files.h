// Helpers of the data tests: gzip, and the message of an InputError.
#pragma once

#include <string>
#include <string_view>

#include "runtime/error.h"

namespace maxim_tests {

// One gzip member.
std::string gzip(std::string_view text);

// What the InputError thrown by `work` says; "no InputError" when there is none.
template <class Work>
std::string input_error(const Work& work) {
  try {
    work();
  } catch (const maxim::InputError& error) {
    return error.what();
  }
  return "no InputError";
}

}  // namespace maxim_tests

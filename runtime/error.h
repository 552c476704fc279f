// Errors. Everything that can go wrong is thrown; `main` prints it once and picks the exit code.
//
//   InputError   the user's command line or input is wrong           exit code 2
//   Error        something failed while running (I/O, memory, MPI)   exit code 1
//
// A message says what was expected, what was found, where (file and line of the input, tensor name)
// and what to do.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace maxim {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InputError : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace maxim

// Precondition of a function, checked in every build: MAXIM_CHECK(rows > 0, "rows {}", rows).
#define MAXIM_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition))                                                                    \
      throw ::maxim::Error(fmt::format("{}: check failed: {}: ", __func__, #condition) + \
                           fmt::format(__VA_ARGS__));                                    \
  } while (0)

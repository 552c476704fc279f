#include "comm/failure.h"

#include <cstdio>
#include <new>

#include "runtime/error.h"

namespace maxim {
Failure current_failure() {
  try {
    throw;
  } catch (const InputError& error) {
    return {2, error.what()};
  } catch (const std::bad_alloc&) {
    return {1, "out of memory"};
  } catch (const std::exception& error) {
    return {1, error.what()};
  } catch (...) {
    return {1, "an exception of unknown type"};
  }
}

std::string name_rank(int rank, const std::string& host, const std::string& message) {
  return fmt::format("rank {} on {}: {}", rank, host, message);
}

void print_failure(const std::string& message) {
  const std::string line = "error: " + message + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace maxim

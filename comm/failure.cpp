#include "comm/failure.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>

#include "runtime/error.h"

namespace maxim {
namespace {

constexpr int kPatienceMilliseconds = 1000;

}  // namespace

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
  size_t written = 0;
  while (written < line.size()) {
    pollfd wait = {STDERR_FILENO, POLLOUT, 0};
    const int ready = poll(&wait, 1, kPatienceMilliseconds);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    const size_t part = std::min<size_t>(line.size() - written, PIPE_BUF);
    const ssize_t bytes = write(STDERR_FILENO, line.data() + written, part);
    if (bytes >= 0)
      written += bytes;
    else if (errno != EINTR && errno != EAGAIN)
      return;
  }
}

}  // namespace maxim

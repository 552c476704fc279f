// Each failed rank sends one record of fixed size to every other and listens for theirs. Point to
// point, because a rank that is alive and well may be waiting in a collective and will never
// answer; on MPI_COMM_WORLD, which carries nothing else (MpiTransport has a duplicate).
#include "comm/failure.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "runtime/error.h"

namespace maxim {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks that fail alike (a bad flag, a missing file) do so within milliseconds of each other, even
// when many share a core; a second also bounds what a lone failure adds to the end of the job.
constexpr auto kPatience = std::chrono::seconds(1);
constexpr int kTag = 1;

struct Record {
  int32_t exit_code;
  char host[92];
  char message[4000];  // longer messages are cut
};

Record record_of(const Failure& failure, const std::string& host) {
  Record record{};
  record.exit_code = failure.exit_code;
  host.copy(record.host, sizeof(record.host) - 1);
  failure.message.copy(record.message, sizeof(record.message) - 1);
  return record;
}

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
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

int end_together(int rank, int size, const std::string& host, const Failure& failure) {
  std::vector<Record> records(size);
  std::vector<MPI_Request> requests(2 * size, MPI_REQUEST_NULL);
  std::vector<int> failed(size, 0);
  records[rank] = record_of(failure, host);
  failed[rank] = 1;
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    MPI_Irecv(&records[other], sizeof(Record), MPI_BYTE, other, kTag, MPI_COMM_WORLD,
              &requests[other]);
    MPI_Isend(&records[rank], sizeof(Record), MPI_BYTE, other, kTag, MPI_COMM_WORLD,
              &requests[size + other]);
  }
  const auto deadline = Clock::now() + kPatience;
  int all_done = 0;
  while (!all_done && Clock::now() < deadline) {
    all_done = 1;
    for (int i = 0; i < 2 * size; ++i) {
      if (requests[i] == MPI_REQUEST_NULL) continue;
      int done = 0;
      MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
      if (done && i < size) failed[i] = 1;
      all_done &= done;
    }
    if (!all_done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  if (all_done) {
    if (rank != 0) return records[0].exit_code;
    std::vector<std::string> printed;
    const bool alike = std::all_of(records.begin(), records.end(), [&](const Record& r) {
      return std::strcmp(r.message, records[0].message) == 0;
    });
    for (int r = 0; r < size; ++r) {
      const std::string message = records[r].message;
      if (std::find(printed.begin(), printed.end(), message) != printed.end()) continue;
      printed.push_back(message);
      print_failure(alike ? message : name_rank(r, records[r].host, message));
    }
    return records[0].exit_code;
  }
  // One voice: the lowest of the failed ranks. The others give it time to end the job, and speak
  // only if it did not.
  if (std::find(failed.begin(), failed.end(), 1) - failed.begin() < rank)
    std::this_thread::sleep_for(kPatience);
  print_failure(name_rank(rank, host, failure.message));
  MPI_Abort(MPI_COMM_WORLD, failure.exit_code);
  return failure.exit_code;
}

}  // namespace maxim

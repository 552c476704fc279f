// Streams and events: queues of work that run only when the host waits for something.
//
// While it waits, streams run by priority: the first in a shuffled order whose next piece of work
// may run. Now and then the order is shuffled again. So a stream often runs as far ahead of the
// others, or as far behind, as events allow; and what the host does not wait for need not happen.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulated/runtime_api.h"
#include "tests/emulator/random.h"

namespace maxim_emulated {

// One cudaEventRecord on its way through a queue.
struct Recording {
  bool done = false;
  double milliseconds = 0;
  uint64_t issued = 0;
};

struct Work {
  std::function<void()> run = {};
  std::shared_ptr<Recording> waits_for = {};  // may run once this is done
  std::shared_ptr<Recording> records = {};
  uint64_t issued = 0;  // its place in the order in which the host gave work, from 1
};

// Work that is running.
struct Running {
  int stream = 0;  // 0 for what the host does itself
  uint64_t issued = 0;
  uint64_t awaited = 0;  // the latest of `issued` of the events that its stream has waited for
};

}  // namespace maxim_emulated

struct CUstream_st {
  int number = 0;
  int device = 0;
  bool blocking = false;  // cudaMemcpy waits for it
  bool destroyed = false;
  uint64_t awaited = 0;
  std::deque<maxim_emulated::Work> queue = {};
};
struct CUevent_st {
  int device = 0;
  bool timed = true;
  std::shared_ptr<maxim_emulated::Recording> recording = {};
};

namespace maxim_emulated {

// The lock that every call of the API takes.
std::unique_lock<std::recursive_mutex> lock_device();
int current_device();
// Keeps `error` for cudaGetLastError() and returns it.
cudaError_t answer(cudaError_t error);

class Streams {
 public:
  static Streams& instance();

  cudaStream_t create(bool blocking);
  // cudaErrorInvalidResourceHandle for a stream that does not exist; a Fault for the default one.
  cudaError_t check(cudaStream_t stream) const;
  // What is queued still runs.
  void destroy(cudaStream_t stream);
  void enqueue(cudaStream_t stream, Work work);

  // Runs queued work until `done`. A Fault drops all that is queued and is passed on.
  void run_until(const std::function<bool()>& done);
  void run_one();  // one piece of work, if any may run
  void run_all() {
    run_until([this] { return idle(); });
  }
  bool idle() const;
  bool blocking_idle() const;
  void reseed(uint64_t seed) { random_ = Random(seed); }

  const Running& running() const { return running_; }

 private:
  Streams();
  void shuffle();
  CUstream_st* next_stream() const;
  void run_front(CUstream_st& stream);
  void drop_all();

  std::vector<std::unique_ptr<CUstream_st>> streams_;  // in order of priority
  int created_ = 0;
  uint64_t issued_ = 0;
  Running running_;
  Random random_;
};

}  // namespace maxim_emulated

// What the main thread of this process is doing, for the lifeline to tell the other ranks.
// Everything here is a few atomic stores, with or without a lifeline.
#pragma once

#include <cstdint>
#include <string>

namespace maxim {

// Held while this process waits for the other ranks: in a collective, or for a stream that one runs
// on. Every rank passes the same ones in the same order, so a rank that has begun fewer than
// another keeps it waiting. One within another does not count, and none counts on another thread.
class Waiting {
 public:
  Waiting();
  ~Waiting();
  Waiting(const Waiting&) = delete;

 private:
  bool counted_;
};

// Held while this process works for long on its own (loading, saving), with the others waiting: it
// is not taken for one that hangs. `name` outlives the process's threads: a literal.
class Phase {
 public:
  explicit Phase(const char* name);
  ~Phase();
  Phase(const Phase&) = delete;

 private:
  const char* outer_;
};

struct Progress {
  int64_t collectives;  // begun
  double waited;        // seconds in the present one, 0 outside
  std::string phase;    // "" outside
};
Progress current_progress();

}  // namespace maxim

// The control channel of a job, beside whatever carries its data: one TCP connection from every
// rank to rank 0, served by one thread a process that sleeps in poll(). It works the same whether
// the ranks talk by MPI, gloo or NCCL, and while their main threads are blocked in a collective.
//
//   every second   each rank tells rank 0 that it lives, what it does and how many collectives it
//                  has begun; rank 0 tells the others that it lives
//   failure        the first makes rank 0 wait up to a second for others (a bad flag fails on all),
//                  print one message and tell all ranks to end
//   a death        a connection that closes without goodbye; the job fails at once
//   silence        nothing heard of a rank for the timeout: it is stopped, or its host is lost
//   a hang         others have waited for the timeout in a collective that a rank has not begun,
//                  and it is in no Phase
//   a stop         see begin_step
//   goodbye        the clean end, in which everyone waits for everyone
//
// Ending is _exit on the lifeline's thread: nothing that the main thread is blocked in can hold it
// up. A rank that is silent, or does not end, is killed by one on its machine: no process is left.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/sockets.h"

namespace maxim {

class Lifeline {
 public:
  // Collective. Throws the same Error on every rank, with the addresses that were tried, when one
  // cannot reach rank 0. A single process has no connections and no thread.
  Lifeline(Messenger& messenger, const std::string& host);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;

  // Seconds until silence or a hang fails the job. 300 until it is called.
  void set_timeout(double seconds);

  // From now on a signal of comm/stop_signals.h on any rank stops the job between two steps; a
  // second one ends it at once.
  void stop_on_signals();
  // Called by every rank before each step, in the order of steps. False when the job is to stop
  // before this step, on every rank before the same one. No message is sent and nothing is waited
  // for, except in the milliseconds in which a stop is agreed on:
  //   rank 0 asks all lifeline threads, which answer with the step their main thread has begun and
  //   from then hold it back from the next; the last step of the job is the highest answer. The
  //   threads answer whatever the main threads do, so the agreement always ends. Nobody has begun a
  //   later step, and every rank goes on until this one is done, so no collective lacks a rank.
  bool begin_step(int64_t step);
  int stopped_by() const { return signal_; }  // the signal, after begin_step said false

  // This rank failed. Prints the message of a single process and returns its exit code; with more
  // ranks it does not return.
  int fail(const Failure& failure);
  // The clean end, collective.
  void end();

 private:
  using Seconds = double;  // of the steady clock
  struct Member {
    std::string host, machine;  // machine: where its process number means something
    int process = 0;
  };
  struct Message {
    int32_t kind, rank, code;
    uint32_t bytes;  // of text that follows
    int64_t number;
    double waited;
  };
  struct Link : Connection {
    Seconds heard = 0;
  };
  struct State {  // of a rank, as rank 0 knows it
    int64_t collectives = 0;
    double waited = 0;
    bool in_phase = false, failed = false, left = false, paused = false;
    Failure failure;
  };

  void call(const std::string& invitation);
  void serve();
  void look_at_own_side();
  void accept_callers();
  void admit(Link& caller);
  void read_messages(int rank, Link& link);
  void tell(int32_t kind, int32_t code = 0, int64_t number = 0, double waited = 0,
            const std::string& text = "");
  void tell_all(int32_t kind, int32_t code = 0, int64_t number = 0, const std::string& text = "");
  void append(Link& link, const Message& message, const std::string& text);
  void handle_at_hub(int rank, const Message& message, const std::string& text);
  void handle(const Message& message, const std::string& text);
  void pause(int signal);
  void watch();
  void watch_for_hangs(double timeout);
  void judge_failures();
  void lost(int rank, const std::string& what, bool kill);
  bool take_the_word();
  [[noreturn]] void finish(int code, const std::string& errors, int victim);
  void kill_on_this_machine(int rank);
  std::string name(int rank, const std::string& message) const;

  const int rank_, size_;
  std::vector<Member> members_;
  std::string token_;
  Descriptor listener_, wake_, word_;

  // Of the thread.
  std::vector<Link> links_;    // rank 0: [size], by rank; else [1], to rank 0
  std::vector<Link> callers_;  // not yet known
  std::vector<State> states_;
  Seconds next_beat_ = 0, first_failure_ = 0;
  Seconds phase_seen_ = 0;  // last time that a rank was known to be in one
  std::atomic<bool> done_ = false;
  bool stopping_ = false;
  bool told_failure_ = false, told_goodbye_ = false, told_stop_ = false;
  int64_t last_step_ = -1;

  std::mutex mutex_;  // of what the main thread and the lifeline's share
  std::condition_variable changed_;
  double timeout_ = 300;
  bool signals_ = false, failed_ = false, goodbye_ = false;
  Failure failure_;
  int64_t begun_ = -1;
  bool paused_ = false, agreed_ = false;
  int64_t stop_after_ = 0;
  int signal_ = 0;
  std::thread thread_;
};

}  // namespace maxim

#include "comm/lifeline.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "comm/progress.h"
#include "comm/stop_signals.h"
#include "runtime/error.h"

namespace maxim {
namespace {

// What a message says. `number`, `waited` and the text belong to the kind.
enum Kind : int32_t {
  hello,     // from a caller; text: the token
  welcome,   // the answer
  beat,      // number: collectives begun, waited: seconds in one, code: 1 in a phase
  failure,   // code: exit code, text: message
  give_up,   // the same, and at once
  stop,      // code: the signal
  pause,     // to all; code: the signal
  paused,    // number: the step begun last
  stop_at,   // to all; number: the last step
  goodbye,   // this rank is done
  farewell,  // to all: so are all
  finis      // to all: the job failed; code: exit code, number: the rank to kill, or -1
};

constexpr double kBeatSeconds = 1;
// A signal or a new message of the main thread is seen within this time at the latest.
constexpr int kTickMilliseconds = 100;
// Ranks that fail alike (a bad flag, a missing file) do so within milliseconds of each other, even
// when many share a core; a second also bounds what a lone failure adds to the end of the job.
constexpr double kPatience = 1;
// What a rank last said of itself is old by a beat, and that of another by another.
constexpr double kStaleSeconds = 2 * kBeatSeconds;
// Silence is longer than a few beats, however short the timeout.
constexpr double kLeastSilence = 3 * kBeatSeconds;
constexpr double kCallSeconds = 5;  // for one address, and for a caller to say who it is
// Who has not ended by then, when the job does, cannot: it is stopped.
constexpr auto kTimeToEnd = std::chrono::seconds(1);
constexpr uint32_t kMostText = 64 << 10;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) fail("no random numbers");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

// Processes with the same one can send each other signals by number: one kernel, one namespace.
std::string machine_name() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) space[0] = 0;
  return boot + space;
}

}  // namespace

Lifeline::Lifeline(Messenger& messenger, const std::string& host)
    : rank_(messenger.rank()), size_(messenger.size()) {
  if (size_ == 1) return;
  wake_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  links_.resize(rank_ == 0 ? size_ : 1);
  states_.resize(size_);
  std::string invitation;
  messenger.checked([&] {
    if (rank_ != 0) return;
    token_ = random_token();
    listener_ = listen_on(0);
    invitation = fmt::format("{} {}", token_, port_of(listener_));
    for (const std::string& address : own_addresses()) invitation += " " + address;
  });
  for (const std::string& text : messenger.all_gather_text(
           fmt::format("{}\n{}\n{}\n{}", host, machine_name(), getpid(), invitation))) {
    std::istringstream lines(text);
    std::string process, invited;
    Member member;
    std::getline(lines, member.host);
    std::getline(lines, member.machine);
    std::getline(lines, process);
    member.process = std::stoi(process);
    members_.push_back(member);
    if (std::getline(lines, invited)) invitation = invited;
  }
  // The handlers of signals run on the main thread.
  const auto start = [this] {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  };
  try {
    if (rank_ == 0) start();
    messenger.checked([&] {
      if (rank_ != 0) call(invitation);
    });
  } catch (...) {
    if (thread_.joinable()) {
      done_ = true;
      thread_.join();
    }
    throw;
  }
  if (rank_ != 0) start();
}

Lifeline::~Lifeline() {
  if (thread_.joinable()) {
    done_ = true;
    thread_.join();
  }
}

void Lifeline::set_timeout(double seconds) {
  const std::lock_guard lock(mutex_);
  timeout_ = seconds;
}

void Lifeline::stop_on_signals() {
  watch_stop_signals(size_ == 1);
  const std::lock_guard lock(mutex_);
  signals_ = true;
}

bool Lifeline::begin_step(int64_t step) {
  if (size_ == 1) {
    signal_ = signals_ ? stop_signal() : 0;
    return signal_ == 0;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !paused_ || agreed_; });
  if (agreed_ && step > stop_after_) return false;
  begun_ = step;
  return true;
}

int Lifeline::fail(const Failure& failure) {
  std::fflush(stdout);  // the thread that ends the process must not wait for its reader
  if (size_ == 1) {
    print_failure(failure.message);
    return failure.exit_code;
  }
  std::unique_lock lock(mutex_);
  failure_ = failure;
  failed_ = true;
  eventfd_write(wake_.get(), 1);
  while (true) changed_.wait(lock);
}

void Lifeline::end() {
  if (size_ == 1) return;
  const Waiting waiting;
  {
    const std::lock_guard lock(mutex_);
    goodbye_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

// Connects to rank 0 at one of the addresses that it listens on, in their order. A process of the
// same machine tries the loopback first: no firewall is on that way.
void Lifeline::call(const std::string& invitation) {
  std::istringstream words(invitation);
  int port = 0;
  words >> token_ >> port;
  std::vector<std::string> addresses;
  if (members_[rank_].machine == members_[0].machine) addresses = {"127.0.0.1", "::1"};
  for (std::string address; words >> address;) addresses.push_back(address);
  std::string tried;
  for (const std::string& address : addresses) {
    std::string reason;
    const Deadline deadline = std::chrono::steady_clock::now() +
                              std::chrono::milliseconds(static_cast<int>(kCallSeconds * 1000));
    Link& link = links_[0];
    link = {};
    const Addresses place = resolve(address, port, reason);
    if (place != nullptr) link.socket = connect_to(*place, deadline, reason);
    if (link.socket.is_open()) {
      append(link, {hello, rank_, 0, 0, 0, 0}, token_);
      link.transmit();
      // One answer, of a message without text.
      Message answer{};
      if (wait_readable(link.socket, deadline) &&
          recv(link.socket.get(), &answer, sizeof(answer), 0) == sizeof(answer) &&
          answer.kind == welcome)
        break;
      reason = "something else answers there";
      link = {};
    }
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", address, reason);
  }
  links_[0].heard = now();
  if (!links_[0].socket.is_open())
    maxim::fail(
        "cannot reach rank 0 on {} over TCP, port {} ({}). The ranks watch over each other on "
        "connections to rank 0's host: a firewall between the hosts has to let them through",
        members_[0].host, port, tried.empty() ? "it has no address" : tried);
}

// The thread.
void Lifeline::serve() {
  std::vector<pollfd> waits;
  while (!done_) {
    waits.assign({{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    for (const std::vector<Link>* links : {&links_, &callers_})
      for (const Link& link : *links)
        waits.push_back({link.socket.get(),
                         static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    poll(waits.data(), waits.size(), kTickMilliseconds);
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);

    // First what arrived, so that a record that was sent before a connection closed is read.
    for (size_t i = 0; i < links_.size() && !done_; ++i) {
      const int other = rank_ == 0 ? static_cast<int>(i) : 0;
      Link& link = links_[i];
      if (!link.socket.is_open()) continue;
      const bool open = link.receive();
      read_messages(other, link);
      if (!open && !done_) lost(other, "died: it was killed, crashed or left early", false);
      link.transmit();
    }
    if (listener_.is_open()) accept_callers();
    if (!done_) look_at_own_side();
    if (!done_) watch();
  }
}

// What the main thread and the signal handlers left for this one.
void Lifeline::look_at_own_side() {
  bool failed, left, signals;
  Failure own;
  {
    const std::lock_guard lock(mutex_);
    failed = failed_ && !told_failure_;
    left = goodbye_ && !told_goodbye_;
    signals = signals_;
    own = failure_;
  }
  const int signal = signals ? stop_signal() : 0;
  if (failed) {
    told_failure_ = true;
    tell(failure, own.exit_code, 0, 0, own.message);
  }
  if (left) {
    told_goodbye_ = true;
    tell(goodbye);
  }
  if (signal != 0 && !told_stop_) {
    told_stop_ = true;
    tell(stop, signal);
  }
  if (signal != 0 && stop_signal_again() && !told_failure_) {
    told_failure_ = true;
    tell(give_up, 128 + signal, 0, 0, "a second signal: the job ends without saving");
  }
  if (now() < next_beat_ || done_) return;
  next_beat_ = now() + kBeatSeconds;
  const Progress progress = current_progress();
  tell(beat, progress.phase.empty() ? 0 : 1, progress.collectives, progress.waited);
  if (rank_ == 0) tell_all(beat);
}

void Lifeline::accept_callers() {
  while (true) {
    Link caller;
    caller.socket = accept_from(listener_);
    caller.heard = now();
    if (!caller.socket.is_open()) break;
    callers_.push_back(std::move(caller));
  }
  std::erase_if(callers_, [this](Link& caller) {
    const bool open = caller.receive();
    if (caller.in.size() < sizeof(Message) + token_.size())
      return !open || now() - caller.heard >= kCallSeconds;  // a stranger, or one who says nothing
    admit(caller);
    return true;
  });
}

void Lifeline::admit(Link& caller) {
  Message message;
  std::memcpy(&message, caller.in.data(), sizeof(message));
  if (message.kind != hello || message.rank < 1 || message.rank >= size_ ||
      links_[message.rank].socket.is_open() || message.bytes != token_.size() ||
      caller.in.substr(sizeof(message)) != token_)
    return;
  Link& link = links_[message.rank];
  link.socket = std::move(caller.socket);
  link.heard = now();
  append(link, {welcome, 0, 0, 0, 0, 0}, "");
  link.transmit();
}

void Lifeline::read_messages(int rank, Link& link) {
  size_t at = 0;
  while (!done_ && link.in.size() - at >= sizeof(Message)) {
    Message message;
    std::memcpy(&message, link.in.data() + at, sizeof(message));
    if (link.in.size() - at < sizeof(message) + message.bytes) break;
    const std::string text = link.in.substr(at + sizeof(message), message.bytes);
    at += sizeof(message) + message.bytes;
    link.heard = now();
    if (rank_ == 0)
      handle_at_hub(rank, message, text);
    else
      handle(message, text);
  }
  link.in.erase(0, at);
}

// To rank 0, which may be this one.
void Lifeline::tell(int32_t kind, int32_t code, int64_t number, double waited,
                    const std::string& text) {
  const Message message{kind, rank_, code, 0, number, waited};
  if (rank_ == 0) return handle_at_hub(0, message, text);
  append(links_[0], message, text);
  links_[0].transmit();  // a broken connection is noticed when it is read
}

// From rank 0 to the others.
void Lifeline::tell_all(int32_t kind, int32_t code, int64_t number, const std::string& text) {
  for (Link& link : links_) {
    if (!link.socket.is_open()) continue;
    append(link, {kind, 0, code, 0, number, 0}, text);
    link.transmit();
  }
}

void Lifeline::append(Link& link, const Message& message, const std::string& text) {
  Message whole = message;
  whole.bytes = static_cast<uint32_t>(std::min<size_t>(text.size(), kMostText));
  link.out.append(reinterpret_cast<const char*>(&whole), sizeof(whole));
  link.out.append(text, 0, whole.bytes);
}

void Lifeline::handle_at_hub(int rank, const Message& message, const std::string& text) {
  State& state = states_[rank];
  switch (message.kind) {
    case beat:
      state.collectives = message.number;
      state.waited = message.waited;
      state.in_phase = message.code != 0;
      break;
    case failure:
      state.failed = true;
      state.failure = {message.code, text};
      if (first_failure_ == 0) first_failure_ = now();
      break;
    case give_up:
      finish(message.code, name(rank, text), -1);
    case stop:
      if (stopping_) break;
      stopping_ = true;
      tell_all(Kind::pause, message.code);
      pause(message.code);
      break;
    case paused:
      state.paused = true;
      last_step_ = std::max(last_step_, message.number);
      if (!std::all_of(states_.begin(), states_.end(), [](const State& s) { return s.paused; }))
        break;
      tell_all(stop_at, 0, last_step_);
      handle({stop_at, 0, 0, 0, last_step_, 0}, "");
      break;
    case goodbye:
      state.left = true;
      if (!std::all_of(states_.begin(), states_.end(), [](const State& s) { return s.left; }))
        break;
      tell_all(farewell);
      done_ = true;
      break;
    default:
      break;
  }
}

void Lifeline::handle(const Message& message, const std::string&) {
  switch (message.kind) {
    case Kind::pause:
      pause(message.code);
      break;
    case stop_at: {
      const std::lock_guard lock(mutex_);
      stop_after_ = message.number;
      agreed_ = true;
      changed_.notify_all();
      break;
    }
    case farewell:
      done_ = true;
      break;
    case finis:
      kill_on_this_machine(static_cast<int>(message.number));
      _exit(message.code);
    default:
      break;
  }
}

void Lifeline::pause(int signal) {
  int64_t begun;
  {
    const std::lock_guard lock(mutex_);
    paused_ = true;
    signal_ = signal;
    begun = begun_;
  }
  tell(paused, 0, begun);
}

// Who is silent, hangs, or has failed.
void Lifeline::watch() {
  double timeout;
  {
    const std::lock_guard lock(mutex_);
    timeout = timeout_;
  }
  const double silence = std::max(timeout, kLeastSilence);
  for (size_t i = 0; i < links_.size(); ++i)
    if (links_[i].socket.is_open() && now() - links_[i].heard > silence)
      lost(rank_ == 0 ? static_cast<int>(i) : 0,
           fmt::format("has not been heard of for {:.0f} s: it is stopped, or its host is lost",
                       silence),
           true);
  if (rank_ != 0) return;
  judge_failures();
  watch_for_hangs(timeout);
}

void Lifeline::watch_for_hangs(double timeout) {
  const auto by_waited = [](const State& a, const State& b) { return a.waited < b.waited; };
  const auto patient = std::max_element(states_.begin(), states_.end(), by_waited);
  if (patient->waited <= timeout + kStaleSeconds) return;
  const auto waits = [](const State& s) { return s.waited > 0; };
  const auto behind = [&](const State& s) { return s.collectives < patient->collectives; };
  const int who = static_cast<int>(patient - states_.begin());
  if (std::any_of(states_.begin(), states_.end(),
                  [&](const State& s) { return !waits(s) && s.in_phase; }))
    phase_seen_ = now();
  // Who waited through a phase has done so for a reason, and has not reported yet what came after.
  if (now() - phase_seen_ <= timeout + kStaleSeconds) return;
  auto culprit = std::find_if(states_.begin(), states_.end(),
                              [&](const State& s) { return !waits(s) || behind(s); });
  if (culprit == states_.end()) {
    const double least = std::min_element(states_.begin(), states_.end(), by_waited)->waited;
    if (least > timeout + kStaleSeconds)
      finish(1,
             fmt::format("all ranks have waited for each other for {:.0f} s, in collective {}: "
                         "is the network between them well?",
                         least, patient->collectives),
             -1);
    return;
  }
  const int rank = static_cast<int>(culprit - states_.begin());
  finish(1,
         name(rank, fmt::format("does not go on: rank {} on {} has waited for it for {:.0f} s. If "
                                "it is only slow, raise --timeout",
                                who, members_[who].host, patient->waited)),
         -1);
}

void Lifeline::judge_failures() {
  if (first_failure_ == 0) return;
  const auto failed = [](const State& s) { return s.failed; };
  const auto first = std::find_if(states_.begin(), states_.end(), failed);
  const Failure& cause = first->failure;
  const bool all = std::all_of(states_.begin(), states_.end(), failed);
  if (!all && now() - first_failure_ <= kPatience) return;
  const bool alike = all && std::all_of(states_.begin(), states_.end(), [&](const State& s) {
                       return s.failure.message == cause.message;
                     });
  const int rank = static_cast<int>(first - states_.begin());
  finish(cause.exit_code, alike ? cause.message : name(rank, cause.message), -1);
}

// A rank is gone. On rank 0 that ends the job; the other ranks watch rank 0 only, and without it
// one of each host speaks.
void Lifeline::lost(int rank, const std::string& what, bool kill) {
  const bool speaks = rank_ == 0 || take_the_word();
  const std::string message = fmt::format("rank {} on {} {}", rank, members_[rank].host, what);
  finish(1, speaks ? message : "", kill ? rank : -1);
}

// Whether this rank is the first of its host to ask: it binds a name (of Linux's abstract sockets,
// which vanish with their owner) that only one process can have.
bool Lifeline::take_the_word() {
  const std::string name = fmt::format("maxim {} {}", token_, members_[rank_].host);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  word_ = Descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return bind(word_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 ||
         errno != EADDRINUSE;
}

void Lifeline::finish(int code, const std::string& errors, int victim) {
  if (!errors.empty()) print_failure(errors);
  if (rank_ == 0) {
    tell_all(finis, code, victim);
    // They close when they have read it; what does not fit into a connection is of no use now.
    const Deadline until = std::chrono::steady_clock::now() + kTimeToEnd;
    for (size_t i = 0; i < links_.size(); ++i) {
      char bytes[4096];
      const Descriptor& socket = links_[i].socket;
      bool ended = !socket.is_open();
      while (!ended && wait_readable(socket, until))
        ended = recv(socket.get(), bytes, sizeof(bytes), 0) <= 0;
      if (!ended) kill_on_this_machine(static_cast<int>(i));
    }
  }
  kill_on_this_machine(victim);
  if (word_.is_open() && !errors.empty()) {
    // The name stays taken until the others of this host have asked for it too.
    std::this_thread::sleep_for(kTimeToEnd);
    for (int r = 0; r < size_; ++r) kill_on_this_machine(r);
  }
  _exit(code);
}

void Lifeline::kill_on_this_machine(int rank) {
  if (rank >= 0 && rank != rank_ && members_[rank].machine == members_[rank_].machine)
    kill(members_[rank].process, SIGKILL);
}

std::string Lifeline::name(int rank, const std::string& message) const {
  return name_rank(rank, members_[rank].host, message);
}

}  // namespace maxim

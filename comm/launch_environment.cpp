#include "comm/launch_environment.h"

#include <unistd.h>

#include <charconv>
#include <cstring>
#include <sstream>
#include <vector>

#include "comm/gloo_transport.h"
#include "comm/host_communicator.h"
#include "runtime/error.h"

namespace maxim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kHowToStart =
    "torchrun, accelerate and the like set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; for a "
    "single process unset them all";

// The variable's value, a whole number from `low` to `high`; -1 where it is not set.
int number_of(const Variables& variables, const char* name, int low, int high) {
  const char* text = variables(name);
  if (text == nullptr) return -1;
  int value = -1;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < low || value > high)
    fail_input("{}='{}' is not a whole number from {} to {}", name, text, low, high);
  return value;
}

constexpr int kMostRanks = 1 << 20;

// Every process takes a ticket, in the order of arrival, and writes on it who it is. Rank 0 reads
// the tickets and then gives its verdict, which all wait for: so a wrong rank is known as soon as
// it comes, whichever ranks are missing.
struct Ticket {
  int rank = 0, size = 0, process = 0;
  std::string host, address;

  std::string text() const {
    return fmt::format("{} {} {} {} {}", rank, size, process, host, address);
  }
  static Ticket read(const std::string& text) {
    Ticket ticket;
    std::istringstream stream(text);
    stream >> ticket.rank >> ticket.size >> ticket.process >> ticket.host >> ticket.address;
    return ticket;
  }
  std::string name() const { return fmt::format("process {} on {}", process, host); }
};

constexpr auto kAgentsPatience = std::chrono::seconds(6);
constexpr const char* kOtherJob = "Does another job use MASTER_PORT too?";
// What the verdict begins with; the rest is the message, or an address that other hosts reach.
constexpr char kGood = '0', kFailed = '1', kWrongInput = '2';

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < 8; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return text + (ranks.size() > 8 ? ", …" : "");
}

std::string judge(Store& store, const Environment& mine, Deadline deadline) {
  std::vector<std::optional<Ticket>> ranks(mine.size);
  std::string remote;
  for (int i = 1; i <= mine.size; ++i) {
    std::string text;
    if (!store.get(text, fmt::format("ticket/{}", i), deadline)) {
      std::vector<int> missing;
      for (int r = 0; r < mine.size; ++r)
        if (!ranks[r]) missing.push_back(r);
      return fmt::format(
          "{}{} of {} ranks came to {} (MASTER_ADDR:MASTER_PORT) in time; missing: {}", kFailed,
          i - 1, mine.size, store.place(), ranks_text(missing));
    }
    const Ticket ticket = Ticket::read(text);
    if (ticket.size != mine.size)
      return fmt::format("{}the ranks differ in WORLD_SIZE: rank 0 has {}, rank {} ({}) has {}",
                         kWrongInput, mine.size, ticket.rank, ticket.name(), ticket.size);
    if (ranks[ticket.rank])
      return fmt::format("{}two processes have RANK {}: {} and {}. {}", kWrongInput, ticket.rank,
                         ranks[ticket.rank]->name(), ticket.name(), kOtherJob);
    ranks[ticket.rank] = ticket;
    if (!is_loopback(ticket.address)) remote = ticket.address;
  }
  return kGood + remote;
}

// Brings the ranks of the job together. Returns the address on which this rank is to listen.
std::string gather_ranks(Store& store, const Environment& mine, const std::string& host,
                         Deadline deadline) {
  const Ticket ticket{mine.rank, mine.size, getpid(), host, store.local_address()};
  const int64_t number = store.add("tickets", 1, deadline);
  if (number > mine.size)  // the verdict is on the others
    fail_input("{} processes have come to {} (MASTER_ADDR:MASTER_PORT), but WORLD_SIZE is {}. {}",
               number, store.place(), mine.size, kOtherJob);
  store.set(fmt::format("ticket/{}", number), ticket.text());
  std::string verdict;
  if (mine.rank == 0) {
    // The others wait until their own deadline, so rank 0 gives up a tenth earlier.
    verdict = judge(store, mine, deadline - (deadline - Clock::now()) / 10);
    store.set("verdict", verdict);
  } else if (!store.get(verdict, "verdict", deadline)) {
    fail("rank 0 did not bring the job together at {} in time; did it start?", store.place());
  }
  const std::string rest = verdict.substr(1);
  if (verdict[0] == kWrongInput) throw InputError(rest);
  if (verdict[0] != kGood) throw Error(rest);
  // A rank on the master's host may reach it by 127.0.0.1 or Debian's 127.0.1.1, which is of no use
  // to the other hosts.
  const bool alone = rest.empty() || !is_loopback(ticket.address);
  return alone ? ticket.address : route_to(rest);
}

// Texts under the keys text/CALL/RANK.
class StoreMessenger final : public Messenger {
 public:
  StoreMessenger(Store& store, const Environment& mine, Deadline deadline)
      : store_(store), rank_(mine.rank), size_(mine.size), deadline_(deadline) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> all_gather_text(const std::string& text) override {
    const auto key = [this](int rank) { return fmt::format("text/{}/{}", calls_, rank); };
    store_.set(key(rank_), text);
    std::vector<std::string> texts(size_);
    for (int r = 0; r < size_; ++r)
      if (!store_.get(texts[r], key(r), deadline_))
        fail("rank {} came to {}, but was not heard of again in time", r, store_.place());
    ++calls_;
    return texts;
  }

 private:
  Store& store_;
  const int rank_, size_;
  const Deadline deadline_;
  int calls_ = 0;
};

// `served_here`: by this process.
Store find_store(const Environment& mine, bool served_here, Deadline deadline) {
  // Where rank 0 could not have the port, an agent serves there by now, or another program has it.
  const bool by_now = mine.rank == 0 && !served_here && !mine.agent_serves;
  try {
    return Store(mine.master_address, mine.master_port, "/maxim/" + mine.job + "/",
                 by_now ? std::min(deadline, Clock::now() + kAgentsPatience) : deadline);
  } catch (const InputError&) {
    throw;
  } catch (const Error& error) {
    if (!by_now) throw;
    fail_input("{}. Another program has the port: choose another MASTER_PORT", error.what());
  }
}

}  // namespace

std::optional<Environment> read_environment(const Variables& variables) {
  const bool slurm = variables("RANK") == nullptr && variables("WORLD_SIZE") == nullptr &&
                     variables("SLURM_PROCID") != nullptr && variables("MASTER_ADDR") != nullptr;
  const char* const rank_name = slurm ? "SLURM_PROCID" : "RANK";
  const char* const size_name = !slurm                              ? "WORLD_SIZE"
                                : variables("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS"
                                                                    : "SLURM_NTASKS";
  bool some = false;
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    some |= variables(name) != nullptr;
  if (!some) return std::nullopt;

  Environment environment;
  environment.rank = number_of(variables, rank_name, 0, kMostRanks);
  environment.size = number_of(variables, size_name, 1, kMostRanks);
  environment.local_rank =
      number_of(variables, slurm ? "SLURM_LOCALID" : "LOCAL_RANK", 0, kMostRanks);
  const int local_size = number_of(variables, "LOCAL_WORLD_SIZE", 1, kMostRanks);
  environment.master_port = number_of(variables, "MASTER_PORT", 1, 65535);
  const char* const address = variables("MASTER_ADDR");
  if (environment.master_port < 0 && slurm)
    environment.master_port =
        20000 + std::max(0, number_of(variables, "SLURM_JOB_ID", 0, 1 << 30)) % 10000;

  const bool single = environment.size == 1;
  std::string missing;
  const auto demand = [&](bool there, const char* name) {
    if (!there) missing += missing.empty() ? name : std::string(", ") + name;
  };
  demand(environment.rank >= 0, rank_name);
  demand(environment.size >= 0, size_name);
  demand(single || (address != nullptr && *address != '\0'), "MASTER_ADDR");
  demand(single || environment.master_port >= 0, "MASTER_PORT");
  if (!missing.empty())
    fail_input("of the launcher's variables {} {} missing: {}", missing,
               missing.find(',') == std::string::npos ? "is" : "are", kHowToStart);
  if (environment.rank >= environment.size)
    fail_input("{}={} is not below {}={}", rank_name, environment.rank, size_name,
               environment.size);
  if (!slurm && local_size >= 0 && environment.local_rank >= local_size)
    fail_input("LOCAL_RANK={} is not below LOCAL_WORLD_SIZE={}", environment.local_rank,
               local_size);
  if (address != nullptr) environment.master_address = address;
  const auto text = [&](const char* name) {
    const char* const value = variables(name);
    return std::string(value == nullptr ? "" : value);
  };
  environment.job =
      fmt::format("{}/{}", text("TORCHELASTIC_RUN_ID"), text("TORCHELASTIC_RESTART_COUNT"));
  if (slurm)
    environment.job = fmt::format("{}.{}/{}", text("SLURM_JOB_ID"), text("SLURM_STEP_ID"),
                                  text("SLURM_RESTART_COUNT"));
  environment.agent_serves = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return environment;
}

void refuse_contradiction(const Variables& variables, int mpi_rank, int mpi_size) {
  const int rank = number_of(variables, "RANK", 0, kMostRanks);
  const int size = number_of(variables, "WORLD_SIZE", 1, kMostRanks);
  if ((rank < 0 || rank == mpi_rank) && (size < 0 || size == mpi_size)) return;
  fail_input(
      "two launchers contradict each other: MPI started {} ranks, but RANK and WORLD_SIZE{} say "
      "something else. Start the program by one of them: unset both under mpirun, or run torchrun "
      "without mpirun (under Slurm: srun --mpi=none torchrun …)",
      mpi_size, size < 0 ? "" : fmt::format(" ({})", size));
}

std::unique_ptr<Communicator> join_job(const Environment& mine, const std::string& host,
                                       Deadline deadline,
                                       const std::function<void(Messenger&)>& watch) {
  // A taken port may be an agent's whose variable says nothing, or another process of rank 0:
  // either is found out by being a client there.
  std::unique_ptr<StoreServer> server;
  if (mine.rank == 0 && !mine.agent_serves) server = StoreServer::listen(mine.master_port);
  Store store = find_store(mine, server != nullptr, deadline);
  const std::string address = gather_ranks(store, mine, host, deadline);
  StoreMessenger messenger(store, mine, deadline);
  watch(messenger);
  const auto connect = [&](const char* name) {
    return std::make_unique<GlooTransport>(store, name, address, mine.rank, mine.size, deadline);
  };
  std::unique_ptr<Transport> first = connect("first/");
  return std::make_unique<HostCommunicator>(std::move(first), connect("second/"));
}

}  // namespace maxim

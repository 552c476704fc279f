// What the launchers' variables mean.
#include "comm/launch_environment.h"

#include <future>
#include <map>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/reference/message_of.h"

using namespace maxim;

namespace {

using Settings = std::map<std::string, std::string>;

Variables of(const Settings& settings) {
  return [&settings](const char* name) -> const char* {
    const auto found = settings.find(name);
    return found == settings.end() ? nullptr : found->second.c_str();
  };
}

const Settings kTorchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "node0"},
                            {"MASTER_PORT", "29400"}};

std::string refusal(Settings settings, const Settings& changed,
                    const std::string& unset = "nothing") {
  for (const auto& [name, value] : changed) settings[name] = value;
  settings.erase(unset);
  try {
    read_environment(of(settings));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("environment: torchrun's variables") {
  const Environment e = *read_environment(of(kTorchrun));
  CHECK(e.rank == 5);
  CHECK(e.size == 8);
  CHECK(e.local_rank == 1);
  CHECK(e.master_address == "node0");
  CHECK(e.master_port == 29400);
  CHECK_FALSE(e.agent_serves);
  Settings again = kTorchrun;
  again["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  again["TORCHELASTIC_RUN_ID"] = "run";
  const Environment first = *read_environment(of(again));
  CHECK(first.agent_serves);
  again["TORCHELASTIC_RESTART_COUNT"] = "1";
  CHECK(read_environment(of(again))->job != first.job);
  again["TORCHELASTIC_RUN_ID"] = "other";
  CHECK(read_environment(of(again))->job != first.job);
}

TEST_CASE("environment: nothing, and a world of one") {
  CHECK_FALSE(read_environment(of({})).has_value());
  CHECK_FALSE(read_environment(of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}})).has_value());
  const Settings one = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  CHECK(read_environment(of(one))->size == 1);
}

TEST_CASE("environment: Slurm's variables with a master") {
  Settings slurm = {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "9"},         {"SLURM_LOCALID", "1"},
                    {"MASTER_ADDR", "n0"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_JOB_ID", "31234"},
                    {"SLURM_STEP_ID", "0"}};
  const Environment e = *read_environment(of(slurm));
  CHECK(e.rank == 3);
  CHECK(e.size == 4);  // of the step, not of the job
  CHECK(e.local_rank == 1);
  CHECK(e.master_port == 21234);
  slurm["MASTER_PORT"] = "29500";
  slurm["SLURM_STEP_ID"] = "1";
  CHECK(read_environment(of(slurm))->master_port == 29500);
  CHECK(read_environment(of(slurm))->job != e.job);
  // torchrun inside of a Slurm job: its variables come first.
  for (const auto& [name, value] : kTorchrun) slurm[name] = value;
  CHECK(read_environment(of(slurm))->size == 8);
}

TEST_CASE("environment: what is missing is named") {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    CHECK(has(refusal(kTorchrun, {}, name), fmt::format("variables {} is missing", name)));
  CHECK(has(refusal({}, {{"LOCAL_RANK", "0"}}), "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are"));
  CHECK(has(refusal(kTorchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is missing"));
}

TEST_CASE("environment: what is wrong is named") {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"})
    for (const char* value : {"", "x", "3x", "-1", " 3", "1e3", "99999999999999999999"})
      CHECK(has(refusal(kTorchrun, {{name, value}}), fmt::format("{}='{}'", name, value)));
  CHECK(has(refusal(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE='0'"));
  CHECK(has(refusal(kTorchrun, {{"MASTER_PORT", "65536"}}), "MASTER_PORT='65536'"));
  CHECK(has(refusal(kTorchrun, {{"RANK", "8"}}), "RANK=8 is not below WORLD_SIZE=8"));
  CHECK(has(refusal(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 is not below"));
}

TEST_CASE("environment: MPI and RANK may agree, not contradict each other") {
  CHECK_NOTHROW(refuse_contradiction(of({}), 1, 2));
  CHECK_NOTHROW(refuse_contradiction(of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), 1, 2));
  for (const Settings& settings :
       {Settings{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, Settings{{"RANK", "1"}, {"WORLD_SIZE", "4"}},
        Settings{{"WORLD_SIZE", "1"}}})
    CHECK_THROWS_AS(refuse_contradiction(of(settings), 1, 2), InputError);
}

TEST_CASE("launch environment: one process too many is told so, at once") {
  const auto server = StoreServer::listen(0);
  Environment environment;
  environment.rank = 1;
  environment.size = 2;
  environment.master_address = "127.0.0.1";
  environment.master_port = server->port();
  environment.job = "job";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  Store others("127.0.0.1", server->port(), "/maxim/job/", deadline);
  others.add("tickets", 2, deadline);
  const auto start = std::chrono::steady_clock::now();
  maxim_tests::require_message<InputError>(
      [&] { join_job(environment, "host", deadline, {}); },
      {"3 processes have come to 127.0.0.1:", "but WORLD_SIZE is 2",
       "Does another job use MASTER_PORT too?"});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("launch environment: a port that another program has is told by rank 0") {
  const Descriptor silent = listen_on(0);  // accepts, and says nothing
  Environment environment;
  environment.size = 2;
  environment.master_address = "127.0.0.1";
  environment.master_port = port_of(silent);
  const auto start = std::chrono::steady_clock::now();
  maxim_tests::require_message<InputError>(
      [&] { join_job(environment, "host", start + std::chrono::seconds(60), {}); },
      {"127.0.0.1:", "Another program has the port: choose another MASTER_PORT"});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("launch environment: ranks that have come are watched before they connect") {
  const int port = port_of(listen_on(0));
  std::vector<std::vector<std::string>> heard(2);
  const auto join = [&](int rank) {
    Environment environment;
    environment.rank = rank;
    environment.size = 2;
    environment.master_address = "127.0.0.1";
    environment.master_port = port;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    join_job(environment, "host", deadline, [&](Messenger& messenger) {
      messenger.all_gather_text("");
      heard[rank] = messenger.all_gather_text(
          fmt::format("I am {} of {}", messenger.rank(), messenger.size()));
      if (rank == 1) throw InputError("lost");
    });
  };
  auto first = std::async(std::launch::async, join, 0);
  maxim_tests::require_message<InputError>([&] { join(1); }, {"lost"});
  CHECK_THROWS_AS(first.get(), Error);  // nobody connects to it
  const std::vector<std::string> both = {"I am 0 of 2", "I am 1 of 2"};
  CHECK(heard[0] == both);
  CHECK(heard[1] == both);
}

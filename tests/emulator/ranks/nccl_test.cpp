// Faults planted in the use of NCCL, which the emulator names on every rank that can see them.
// Several ranks are needed where ranks differ: these cases pass over a single one.
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "emulated/emulator.h"
#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"
#include "tests/mpi/world.h"

namespace maxim_tests {
namespace {

using maxim_emulated::Fault;

constexpr int kCount = 8;

int rank() { return world().rank; }
int size() { return world().size; }
bool last() { return rank() == size() - 1; }

// A communicator of all ranks, and two streams of its device.
struct Job {
  Job() : device(world().local_rank) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    for (cudaStream_t* stream : {&main, &side})
      REQUIRE(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    ncclUniqueId id = {};  // emulated ranks meet over MPI; the ids are only compared
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    REQUIRE(finish(ncclCommInitRankConfig(&comm, size(), id, rank(), &config)) == ncclSuccess);
  }
  ~Job() {
    cudaDeviceSynchronize();
    if (comm != nullptr) ncclCommAbort(comm);
    cudaEventDestroy(event);
    for (cudaStream_t stream : {main, side}) cudaStreamDestroy(stream);
  }
  Job(const Job&) = delete;

  // Waits as NCCL asks for after a call of a non-blocking communicator. (No REQUIRE here: it would
  // catch a fault.)
  ncclResult_t finish(ncclResult_t result) const {
    while (result == ncclInProgress)
      if (ncclCommGetAsyncError(comm, &result) != ncclSuccess) return ncclInternalError;
    return result;
  }
  void order(cudaStream_t earlier, cudaStream_t later) const {
    REQUIRE(cudaEventRecord(event, earlier) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(later, event, 0) == cudaSuccess);
  }
  ncclResult_t sum(const DeviceBuffer<float>& values, size_t count = kCount) const {
    return finish(
        ncclAllReduce(values.data(), values.data(), count, ncclFloat32, ncclSum, comm, main));
  }
  ncclResult_t gather(const DeviceBuffer<float>& mine, const DeviceBuffer<float>& all) const {
    return finish(ncclAllGather(mine.data(), all.data(), kCount, ncclFloat32, comm, main));
  }

  int device = 0;
  cudaStream_t main = nullptr, side = nullptr;
  cudaEvent_t event = nullptr;
  ncclComm_t comm = nullptr;
};

// What the fault says; "" if there is none.
std::string fault_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

// The values of a buffer. A fault on the way is not Catch's: it is passed on.
float first_of(const DeviceBuffer<float>& values, int at = 0) {
  cudaDeviceSynchronize();
  return values.to_host()[at];
}

std::vector<float> ones() { return std::vector<float>(kCount, 1); }

void set_all(float* out, float value) { out[threadIdx.x] = value; }
void add_one(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x] + 1; }

template <class... Parameters, class... Arguments>
void launch_on(cudaStream_t stream, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config = {.gridDim = 1, .blockDim = kCount, .stream = stream};
  REQUIRE(cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess);
}

// The fault of calls that are not the same on the last rank as on the others.
void check_differs(const std::function<void(const Job&, const DeviceBuffer<float>&)>& others,
                   const std::function<void(const Job&, const DeviceBuffer<float>&)>& of_last,
                   const std::string& first, const std::string& second) {
  const Job job;
  const DeviceBuffer<float> values(ones());
  const std::string text = fault_of([&] { (last() ? of_last : others)(job, values); });
  INFO(text);
  CHECK(text.find("ranks call different collectives: rank 0 " + first) == 0);
  CHECK(text.find(", rank " + std::to_string(size() - 1) + " " + second) != std::string::npos);
  // The ranks are in step again.
  DeviceBuffer<float> fresh(ones());
  REQUIRE(job.sum(fresh) == ncclSuccess);
  CHECK(fresh.to_host() == std::vector<float>(kCount, static_cast<float>(size())));
}

}  // namespace

TEST_CASE("nccl faults: counts, types, operations, kinds and roots that differ") {
  if (size() == 1) {
    SUCCEED("needs several ranks");
    return;
  }
  using Values = DeviceBuffer<float>;
  const auto reduce = [](size_t count, ncclDataType_t type, ncclRedOp_t op) {
    return [=](const Job& job, const Values& v) {
      job.finish(ncclAllReduce(v.data(), v.data(), count, type, op, job.comm, job.main));
    };
  };
  const auto broadcast = [](int root) {
    return [=](const Job& job, const Values& v) {
      job.finish(ncclBroadcast(v.data(), v.data(), kCount, ncclFloat32, root, job.comm, job.main));
    };
  };
  const auto sum = reduce(kCount, ncclFloat32, ncclSum);
  const std::string sum_text = "ncclAllReduce(count 8, type 7, op 0, root 0)";
  check_differs(sum, reduce(kCount - 1, ncclFloat32, ncclSum), sum_text,
                "ncclAllReduce(count 7, type 7, op 0, root 0)");
  check_differs(sum, reduce(0, ncclFloat32, ncclSum), sum_text,
                "ncclAllReduce(count 0, type 7, op 0, root 0)");
  check_differs(sum, reduce(kCount, ncclBfloat16, ncclSum), sum_text,
                "ncclAllReduce(count 8, type 9, op 0, root 0)");
  check_differs(sum, reduce(kCount, ncclFloat32, ncclMax), sum_text,
                "ncclAllReduce(count 8, type 7, op 2, root 0)");
  check_differs(sum, broadcast(0), sum_text, "ncclBroadcast(count 8, type 7, op 0, root 0)");
  check_differs(broadcast(0), broadcast(1), "ncclBroadcast(count 8, type 7, op 0, root 0)",
                "ncclBroadcast(count 8, type 7, op 0, root 1)");
}

TEST_CASE("nccl faults: another order, another group, another number of collectives") {
  if (size() == 1) {
    SUCCEED("needs several ranks");
    return;
  }
  using Values = DeviceBuffer<float>;
  const auto two = [](size_t first, size_t second) {
    return [=](const Job& job, const Values& v) {
      job.sum(v, first);
      job.sum(v, second);
    };
  };
  check_differs(two(8, 4), two(4, 8), "ncclAllReduce(count 8", "ncclAllReduce(count 4");
  const auto group_of = [](int calls) {
    return [=](const Job& job, const Values& v) {
      REQUIRE(ncclGroupStart() == ncclSuccess);
      for (int i = 0; i < calls; ++i)
        REQUIRE(ncclAllReduce(v.data() + i, v.data() + i, 1, ncclFloat32, ncclSum, job.comm,
                              job.main) == ncclSuccess);
      job.finish(ncclGroupEnd());
    };
  };
  check_differs(group_of(2), group_of(1), "ncclAllReduce(count 1", "ncclAllReduce(count 1");
  {
    // One rank more of them than the others, which finalize.
    const Job job;
    const Values values(ones());
    const std::string text = fault_of([&] {
      if (!last()) job.sum(values);
      job.finish(ncclCommFinalize(job.comm));
    });
    INFO(text);
    CHECK(text.find("rank 0 ncclAllReduce(count 8") != std::string::npos);
    CHECK(text.find(fmt::format("rank {} ncclCommFinalize", size() - 1)) != std::string::npos);
  }
  {
    // A rank that comes to nothing at all.
    setenv("MAXIM_EMULATED_NCCL_SECONDS", "0.2", 1);
    const Job job;
    const Values values(ones());
    const std::string text = fault_of([&] {
      if (!last()) job.sum(values);
    });
    unsetenv("MAXIM_EMULATED_NCCL_SECONDS");
    INFO(text);
    CHECK((last() ? text.empty()
                  : text.find(fmt::format(" waits in ncclAllReduce(count 8, type 7, op 0, root 0) "
                                          "for rank {}",
                                          size() - 1)) != std::string::npos));
  }
}

TEST_CASE("nccl faults: a communicator, stream or memory that may not be used") {
  const auto check_fault = [](const std::string& words,
                              const std::function<void(Job&, const DeviceBuffer<float>&)>& work) {
    Job job;
    const DeviceBuffer<float> values(std::vector<float>(kCount * size(), 1));
    const std::string text = fault_of([&] { work(job, values); });
    INFO(text);
    CHECK(text.find(words) != std::string::npos);
    // No half of a group is left: a call by itself goes through.
    const Job other;
    REQUIRE(other.sum(values) == ncclSuccess);
    CHECK(values.to_host()[0] == static_cast<float>(size()));
  };
  const auto abort = [](Job& job) {
    CHECK(ncclCommAbort(job.comm) == ncclSuccess);
    return std::exchange(job.comm, nullptr);
  };
  for (const bool in_group : {false, true}) {
    const auto begin = [=] {
      if (in_group) REQUIRE(ncclGroupStart() == ncclSuccess);
    };
    check_fault("ncclAllReduce: the communicator was destroyed or aborted",
                [&](Job& job, const DeviceBuffer<float>& v) {
                  const ncclComm_t ended = abort(job);
                  begin();
                  ncclAllReduce(v.data(), v.data(), 1, ncclFloat32, ncclSum, ended, job.main);
                });
    check_fault("ncclAllReduce: the communicator was finalized",
                [&](Job& job, const DeviceBuffer<float>& v) {
                  REQUIRE(job.finish(ncclCommFinalize(job.comm)) == ncclSuccess);
                  begin();
                  job.sum(v);
                });
    check_fault("a communicator of device", [&](Job& job, const DeviceBuffer<float>& v) {
      setenv("MAXIM_EMULATED_DEVICES", "9", 1);
      const int other = job.device + 1;
      REQUIRE(cudaSetDevice(other) == cudaSuccess);
      cudaStream_t foreign = nullptr;
      REQUIRE(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking) == cudaSuccess);
      REQUIRE(cudaSetDevice(job.device) == cudaSuccess);
      unsetenv("MAXIM_EMULATED_DEVICES");
      begin();
      ncclAllReduce(v.data(), v.data(), 1, ncclFloat32, ncclSum, job.comm, foreign);
    });
    check_fault("default stream", [&](Job& job, const DeviceBuffer<float>& v) {
      begin();
      ncclAllReduce(v.data(), v.data(), 1, ncclFloat32, ncclSum, job.comm, nullptr);
    });
    check_fault("which is not device memory", [&](Job& job, const DeviceBuffer<float>&) {
      std::vector<float> host(kCount);
      begin();
      ncclAllReduce(host.data(), host.data(), 1, ncclFloat32, ncclSum, job.comm, job.main);
    });
    check_fault("ncclAllReduce: 4000 bytes at", [&](Job& job, const DeviceBuffer<float>& v) {
      begin();
      job.sum(v, 1000);  // more than there is
    });
    check_fault("ncclAllReduce: buffers overlap, but not in place",
                [&](Job& job, const DeviceBuffer<float>& v) {
                  begin();
                  ncclAllReduce(v.data(), v.data() + 1, 2, ncclFloat32, ncclSum, job.comm,
                                job.main);
                });
    check_fault("ncclAllGather: buffers overlap, but not in place",
                [&](Job& job, const DeviceBuffer<float>& v) {
                  begin();
                  const int place = size() == 1 ? 1 : 2 * ((rank() + 1) % size());
                  ncclAllGather(v.data() + place, v.data(), 2, ncclFloat32, job.comm, job.main);
                });
    check_fault("ncclReduceScatter: buffers overlap, but not in place",
                [&](Job& job, const DeviceBuffer<float>& v) {
                  begin();
                  ncclReduceScatter(v.data(), v.data() + 2 * rank() + 1, 2, ncclFloat32, ncclSum,
                                    job.comm, job.main);
                });
  }
}

namespace {

enum class Ordering { kNone, kEvent };

// What a program came to under each of many seeds: a sum's value or "fault".
std::map<std::string, int> outcomes(const std::function<float(Job&, bool)>& program,
                                    Ordering ordering) {
  std::map<std::string, int> all;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    Job job;
    maxim_emulated::set_seed(seed);  // of all ranks: these run the same streams
    float got = 0;
    const std::string text = fault_of([&] { got = program(job, ordering == Ordering::kEvent); });
    const bool named = text.find("its input was changed before it was done") != std::string::npos;
    ++all[named ? "fault" : text.empty() ? fmt::format("{}", got / size()) : text];
    world().communicator->barrier();
  }
  maxim_emulated::set_seed(1);
  return all;
}

// Another stream writes the input.
float input_from_side(Job& job, bool ordered) {
  const DeviceBuffer<float> values(std::vector<float>(kCount, 0));
  launch_on(job.side, set_all, values.data(), 2.0f);
  if (ordered) job.order(job.side, job.main);
  REQUIRE(job.sum(values) == ncclSuccess);
  return first_of(values);
}
// Another stream reads the result.
float output_to_side(Job& job, bool ordered) {
  const DeviceBuffer<float> values(ones()), result(kCount);
  REQUIRE(job.sum(values) == ncclSuccess);
  if (ordered) job.order(job.main, job.side);
  launch_on(job.side, add_one, values.data(), result.data());
  cudaStreamSynchronize(job.side);
  return (first_of(result) - 1) * 2;
}
// Another stream writes the input again before the collective is done.
float input_reused(Job& job, bool ordered) {
  const DeviceBuffer<float> mine(std::vector<float>(kCount, 2)), all(kCount * size());
  REQUIRE(job.gather(mine, all) == ncclSuccess);
  if (ordered) job.order(job.main, job.side);
  launch_on(job.side, set_all, mine.data(), 7.0f);
  return first_of(all, kCount * (size() - 1)) * size();
}

}  // namespace

TEST_CASE("nccl faults: a missing event ahead of a collective or behind it shows") {
  for (const auto& program : {input_from_side, output_to_side, input_reused}) {
    CHECK(outcomes(program, Ordering::kEvent) == std::map<std::string, int>{{"2", 16}});
    const std::map<std::string, int> unordered = outcomes(program, Ordering::kNone);
    INFO(unordered.begin()->first << ", " << unordered.begin()->second << " times");
    // Alone, the sum that lands is the input, so a result that is read too early is right.
    if (size() > 1 || program != output_to_side) CHECK(unordered.size() > 1);
    if (program != output_to_side) CHECK(unordered.count("fault") == 1);
  }
}

}  // namespace maxim_tests

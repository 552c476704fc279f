#include <fmt/format.h>
#include <mpi.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_bf16.h"
#include "emulated/library.h"
#include "tests/emulator/device_heap.h"
#include "tests/emulator/records.h"
#include "tests/emulator/streams.h"

using maxim_emulated::Fault;
using maxim_emulated::Recording;
using maxim_emulated::Streams;
using Bytes = std::vector<char>;

// Handles stay valid for ever, so that their use after the end shows.
struct ncclComm {
  MPI_Comm ranks = MPI_COMM_NULL;
  int rank = 0, size = 0, device = 0;
  bool ended = false;        // destroyed or aborted
  bool in_progress = false;  // until ncclCommGetAsyncError said so
  bool finalized = false;
  int collectives = 0;
  std::deque<std::string> told = {};  // to the others: must stay while MPI sends it
  std::vector<MPI_Request> telling = {};
  std::vector<std::string> said = {};      // by each rank; empty: not yet
  std::shared_ptr<Recording> landed = {};  // of the last collective: the next comes after it
};

namespace {

struct Call {
  std::string name;
  const char* in;
  char* out;  // null: nothing is received here
  size_t in_bytes, out_bytes;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  ncclComm_t comm;
  cudaStream_t stream;
  Bytes input = {}, result = {};  // as read and as exchanged
};

int group_depth = 0;
std::vector<Call> calls;  // of the group, or the only one

size_t size_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}

// Drops the group at hand, so that what comes later is not taken for a part of it.
void drop_group() {
  group_depth = 0;
  calls.clear();
}
[[noreturn]] void fault(const std::string& text) {
  drop_group();
  throw Fault(text);
}

void check_comm(const char* name, ncclComm_t comm) {
  if (comm == nullptr) fault(fmt::format("{}: no communicator", name));
  if (comm->ended) fault(fmt::format("{}: the communicator was destroyed or aborted", name));
}

std::string describe(const Call& call) {
  return fmt::format("{}(count {}, type {}, op {}, root {})", call.name, call.count,
                     static_cast<int>(call.type), static_cast<int>(call.op), call.root);
}

// Reads the inputs when the stream gets there, and the communicator's earlier collectives are done.
void read_inputs(std::vector<Call>& calls) {
  for (Call& call : calls) {
    const auto read = std::make_shared<Recording>();
    Streams& streams = Streams::instance();
    if (call.comm->landed != nullptr)
      streams.enqueue(call.stream, {.waits_for = call.comm->landed});
    streams.enqueue(call.stream, {.run =
                                      [&] {
                                        if (call.in != nullptr)
                                          call.input.assign(call.in, call.in + call.in_bytes);
                                      },
                                  .records = read});
    streams.run_until([&] { return read->done; });
  }
}

// Seconds that a rank may be ahead of the others.
double patience() {
  const char* seconds = std::getenv("MAXIM_EMULATED_NCCL_SECONDS");
  return seconds == nullptr ? 60 : std::atof(seconds);
}

// Tells the other ranks what this one calls next.
void tell(ncclComm& comm, const std::string& words) {
  comm.told.push_back(words);
  comm.said.assign(comm.size, "");
  comm.said[comm.rank] = words;
  for (int r = 0; r < comm.size; ++r) {
    if (r == comm.rank) continue;
    MPI_Isend(comm.told.back().data(), static_cast<int>(words.size()), MPI_CHAR, r, 0, comm.ranks,
              &comm.telling.emplace_back());
  }
}

// Whether all ranks said what they call; a Fault if it is not the same.
bool all_say_the_same(ncclComm& comm) {
  for (int r = 0; r < comm.size; ++r) {
    int said = 0, length = 0;
    MPI_Status status;
    if (!comm.said[r].empty()) continue;
    MPI_Iprobe(r, 0, comm.ranks, &said, &status);
    if (!said) continue;
    MPI_Get_count(&status, MPI_CHAR, &length);
    comm.said[r].resize(length);
    MPI_Recv(comm.said[r].data(), length, MPI_CHAR, r, 0, comm.ranks, MPI_STATUS_IGNORE);
  }
  if (std::count(comm.said.begin(), comm.said.end(), "") > 0) return false;
  MPI_Waitall(static_cast<int>(comm.telling.size()), comm.telling.data(), MPI_STATUSES_IGNORE);
  comm.telling.clear();
  comm.told.clear();
  for (int r = 1; r < comm.size; ++r)
    if (comm.said[r] != comm.said[0])
      fault(fmt::format("ranks call different collectives: rank 0 {}, rank {} {}", comm.said[0], r,
                        comm.said[r]));
  return true;
}

void demand_same_calls(const std::vector<Call>& calls) {
  ncclComm& comm = *calls[0].comm;
  std::string mine;
  for (const Call& call : calls) mine += describe(call) + " ";
  tell(comm, mine);
  const double start = MPI_Wtime();
  while (!all_say_the_same(comm)) {
    std::this_thread::yield();
    if (MPI_Wtime() - start < patience()) continue;
    std::string missing;
    for (int r = 0; r < comm.size; ++r)
      if (comm.said[r].empty()) missing += fmt::format(" {}", r);
    fault(fmt::format("rank {} waits in {}for rank{}", comm.rank, mine, missing));
  }
}

float load(const char* at, ncclDataType_t type) {
  if (type == ncclFloat32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return maxim_emulated::bf16_to_float(bits);
}

float round(float value, ncclDataType_t type) {
  if (type == ncclFloat32) return value;
  return maxim_emulated::bf16_to_float(maxim_emulated::float_to_bf16(value));
}

void store(char* at, float value, ncclDataType_t type) {
  const uint16_t bits = maxim_emulated::float_to_bf16(value);
  if (type == ncclFloat32)
    std::memcpy(at, &value, 4);
  else
    std::memcpy(at, &bits, 2);
}

// Elements [begin, begin + count) of all ranks' inputs, from rank last + 1 around the ring to
// `last`.
void reduce(const Call& call, const Bytes& all, size_t begin, size_t count, int last, char* out) {
  const int ranks = call.comm->size;
  const size_t unit = size_of(call.type);
  const auto element = [&](int r, size_t i) {
    return load(&all[r * call.in_bytes + (begin + i) * unit], call.type);
  };
  for (size_t i = 0; i < count; ++i) {
    float value = element((last + 1) % ranks, i);
    for (int k = 2; k <= ranks; ++k) {
      const float next = element((last + k) % ranks, i);
      value = call.op == ncclMax ? std::fmax(value, next) : round(value + next, call.type);
    }
    store(out + i * unit, value, call.type);
  }
}

void exchange(Call& call) {
  const ncclComm& comm = *call.comm;
  if (call.in_bytes > INT_MAX) fault(call.name + ": more bytes than this emulator sends");
  const int bytes = static_cast<int>(call.in_bytes);
  call.result.resize(call.out_bytes);
  if (call.name == "ncclBroadcast") {
    if (comm.rank == call.root) call.result = call.input;
    MPI_Bcast(call.result.data(), bytes, MPI_BYTE, call.root, comm.ranks);
    return;
  }
  Bytes all(call.in_bytes * comm.size);
  MPI_Allgather(call.input.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm.ranks);
  if (call.name == "ncclAllGather") call.result = std::move(all);
  if (call.name == "ncclReduceScatter")
    reduce(call, all, comm.rank * call.count, call.count, comm.rank, call.result.data());
  if (call.name == "ncclReduce" && comm.rank == call.root)
    reduce(call, all, 0, call.count, call.root, call.result.data());
  if (call.name == "ncclAllReduce")
    for (int r = 0; r < comm.size; ++r) {
      const size_t begin = call.count * r / comm.size, end = call.count * (r + 1) / comm.size;
      reduce(call, all, begin, end - begin, r, call.result.data() + begin * size_of(call.type));
    }
}

void land(const Call& call) {
  maxim_emulated::trace(call.name, call.out_bytes);
  if (call.in != nullptr && std::memcmp(call.in, call.input.data(), call.in_bytes) != 0)
    fault(describe(call) + ": its input was changed before it was done");
  if (call.out != nullptr) std::memcpy(call.out, call.result.data(), call.out_bytes);
}

ncclResult_t run(std::vector<Call> calls) {
  ncclComm& comm = *calls[0].comm;
  if (comm.in_progress) return ncclInvalidArgument;
  for (const Call& call : calls)
    if (call.comm != &comm || call.stream != calls[0].stream)
      fault("a group of several communicators or streams, which Maxim does not use");
  read_inputs(calls);
  demand_same_calls(calls);
  for (Call& call : calls) exchange(call);
  comm.landed = std::make_shared<Recording>();
  const cudaStream_t stream = calls[0].stream;
  Streams::instance().enqueue(stream, {.run =
                                           [calls = std::move(calls)] {
                                             for (const Call& call : calls) land(call);
                                           },
                                       .records = comm.landed});
  ++comm.collectives;
  comm.in_progress = true;
  return ncclInProgress;
}

ncclResult_t add(Call call) {
  const auto lock = maxim_emulated::lock_device();
  const char* name = call.name.c_str();
  check_comm(name, call.comm);
  if (call.comm->finalized) fault(fmt::format("{}: the communicator was finalized", name));
  if (call.root < 0 || call.root >= call.comm->size) return ncclInvalidArgument;
  try {
    if (Streams::instance().check(call.stream) != cudaSuccess) return ncclInvalidArgument;
    if (call.stream->device != call.comm->device)
      throw Fault(fmt::format("{}: a stream of device {}, a communicator of device {}", name,
                              call.stream->device, call.comm->device));
    if (call.in != nullptr && call.in_bytes > 0)
      maxim_emulated::require_device_memory(name, call.in, call.in_bytes);
    if (call.out != nullptr && call.out_bytes > 0)
      maxim_emulated::require_device_memory(name, call.out, call.out_bytes);
  } catch (const Fault&) {
    drop_group();
    throw;
  }
  calls.push_back(std::move(call));
  return group_depth > 0 ? ncclSuccess : run(std::exchange(calls, {}));
}

// A Fault unless the smaller range is apart from the larger one or at `place` in it.
void check_place(const char* name, const void* part, const char* whole, size_t bytes, int rank,
                 int ranks) {
  const auto distance = static_cast<const char*>(part) - whole;
  const auto unit = static_cast<std::ptrdiff_t>(bytes);
  if (distance == rank * unit || distance >= ranks * unit || distance <= -unit) return;
  fault(fmt::format("{}: buffers overlap, but not in place", name));
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return kTexts[result];
}
const char* ncclGetLastError(ncclComm_t) { return "emulated"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 0, sizeof id->internal);
  fmt::format_to_n(id->internal, sizeof id->internal, "emulated {}", getpid());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) fault("a blocking communicator, which cannot be timed out");
  auto* made = new ncclComm{.device = maxim_emulated::current_device(), .in_progress = true};
  MPI_Comm_dup(MPI_COMM_WORLD, &made->ranks);
  MPI_Comm_rank(made->ranks, &made->rank);
  MPI_Comm_size(made->ranks, &made->size);
  if (made->rank != rank || made->size != ranks)
    fault(fmt::format("ncclCommInitRankConfig: rank {} of {}, but {} of {} of the mpirun", rank,
                      ranks, made->rank, made->size));
  char mine[256] = {};
  gethostname(mine, 100);
  cudaDeviceGetPCIBusId(mine + 100, 28, made->device);
  std::memcpy(mine + 128, id.internal, 128);
  std::vector<char> all(256 * ranks);
  MPI_Allgather(mine, 256, MPI_CHAR, all.data(), 256, MPI_CHAR, made->ranks);
  for (int r = 0; r < ranks; ++r) {
    if (std::memcmp(&all[256 * r + 128], mine + 128, 128) != 0)
      fault("ncclCommInitRankConfig: ranks with different ids");
    if (r != rank && std::memcmp(&all[256 * r], mine, 128) == 0) return ncclInvalidUsage;
  }
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  check_comm("ncclCommGetAsyncError", comm);
  const char* failing = std::getenv("MAXIM_EMULATED_NCCL_ERROR");
  if (comm->finalized && comm->in_progress && !all_say_the_same(*comm)) {
    std::this_thread::yield();
    *error = ncclInProgress;
    return ncclSuccess;
  }
  *error = std::exchange(comm->in_progress, false) ? ncclInProgress : ncclSuccess;
  if (failing != nullptr && comm->collectives >= std::atoi(failing)) *error = ncclRemoteError;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  check_comm("ncclCommFinalize", comm);
  if (comm->in_progress || std::exchange(comm->finalized, true)) return ncclInvalidArgument;
  comm->in_progress = true;
  tell(*comm, "ncclCommFinalize");
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  check_comm("ncclCommDestroy", comm);
  if (comm->in_progress) return ncclInvalidArgument;
  comm->ended = true;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  check_comm("ncclCommAbort", comm);
  comm->ended = true;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const auto lock = maxim_emulated::lock_device();
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0 || calls.empty()) return ncclSuccess;
  return run(std::exchange(calls, {}));
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  check_comm("ncclAllGather", comm);
  const size_t bytes = count * size_of(type);
  check_place("ncclAllGather", in, static_cast<char*>(out), bytes, comm->rank, comm->size);
  return add({"ncclAllGather", static_cast<const char*>(in), static_cast<char*>(out), bytes,
              bytes * comm->size, count, type, ncclSum, 0, comm, stream});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  check_comm("ncclReduceScatter", comm);
  const size_t bytes = count * size_of(type);
  check_place("ncclReduceScatter", out, static_cast<const char*>(in), bytes, comm->rank,
              comm->size);
  return add({"ncclReduceScatter", static_cast<const char*>(in), static_cast<char*>(out),
              bytes * comm->size, bytes, count, type, op, 0, comm, stream});
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  check_comm("ncclAllReduce", comm);
  const size_t bytes = count * size_of(type);
  check_place("ncclAllReduce", out, static_cast<const char*>(in), bytes, 0, 1);
  return add({"ncclAllReduce", static_cast<const char*>(in), static_cast<char*>(out), bytes, bytes,
              count, type, op, 0, comm, stream});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  check_comm("ncclReduce", comm);
  const size_t bytes = count * size_of(type);
  if (comm->rank == root) check_place("ncclReduce", in, static_cast<char*>(out), bytes, 0, 1);
  return add({"ncclReduce", static_cast<const char*>(in),
              comm->rank == root ? static_cast<char*>(out) : nullptr, bytes,
              comm->rank == root ? bytes : 0, count, type, op, root, comm, stream});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  check_comm("ncclBroadcast", comm);
  const size_t bytes = count * size_of(type);
  if (comm->rank == root) check_place("ncclBroadcast", in, static_cast<char*>(out), bytes, 0, 1);
  return add({"ncclBroadcast", comm->rank == root ? static_cast<const char*>(in) : nullptr,
              static_cast<char*>(out), bytes, bytes, count, type, ncclSum, root, comm, stream});
}

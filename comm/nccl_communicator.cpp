// NCCL in its non-blocking mode: a call that would wait for a peer returns "in progress", and we
// wait for it here, where a failed peer and the time limit are seen. While the host waits for the
// device, CudaDevice calls watch().
#include "comm/nccl_communicator.h"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "comm/host.h"
#include "runtime/cuda_device.h"

namespace maxim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kEndSeconds = 10;  // for a clean end, which waits for peers that may be gone

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char c : id.internal) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

ncclUniqueId from_hex(const std::string& text) {
  ncclUniqueId id;
  for (size_t i = 0; i < sizeof(id.internal); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

ncclDataType_t summable(const Tensor& tensor) {
  if (tensor.dtype() == DType::f32) return ncclFloat32;
  MAXIM_CHECK(tensor.dtype() == DType::bf16, "{}", name_of(tensor.dtype()));
  return ncclBfloat16;
}

// Two ranks on one GPU hang in NCCL. CUDA_VISIBLE_DEVICES gives equal numbers to different GPUs, so
// the bus decides.
void demand_own_gpus(Communicator& host) {
  int index = 0;
  std::array<char, 32> bus{};
  cuda_check(cudaGetDevice(&index), "cudaGetDevice");
  cuda_check(cudaDeviceGetPCIBusId(bus.data(), bus.size(), index), "cudaDeviceGetPCIBusId");
  const std::vector<std::string> gpus =
      host.all_gather_text(fmt::format("GPU {} of {}", bus.data(), host_name()));
  for (auto second = gpus.begin(); second != gpus.end(); ++second) {
    const auto first = std::find(gpus.begin(), second, *second);
    if (first != second)
      fail_input("ranks {} and {} both have {}: start at most one rank a GPU, or use --device cpu",
                 first - gpus.begin(), second - gpus.begin(), *second);
  }
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(CudaDevice& device, Communicator& host, double seconds)
      : device_(device), host_(host), patience_(seconds), stream_(device.stream()) {
    int nccl = 0, runtime = 0;
    check(ncclGetVersion(&nccl), "ncclGetVersion");
    cuda_check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    host.demand_same(fmt::format("NCCL {} (built with {})\nCUDA runtime {}\n", nccl,
                                 NCCL_VERSION_CODE, runtime));
    demand_own_gpus(host);
    ncclUniqueId id{};
    host.checked([&] {
      if (rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    id = from_hex(host.all_gather_text(rank() == 0 ? to_hex(id) : "")[0]);
    cuda_check(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaEvent_t* event : {&begun_, &ended_})
      cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    issue(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), "ncclCommInitRankConfig");
    device_.set_watch([this](double waited) { watch(waited); });
  }

  ~NcclCommunicator() override {
    device_.set_watch(nullptr);
    if (comm_ != nullptr) end();
    cudaEventDestroy(begun_);
    cudaEventDestroy(ended_);
    cudaStreamDestroy(second_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void all_gather(const Tensor& all, const Tensor& mine,
                  const std::vector<int64_t>& parts) override {
    check_parts(all, mine, parts);
    ++calls_;
    bytes_sent_ += mine.bytes() * (size() - 1);
    if (all.empty()) return;
    if (alike(parts))
      return issue(ncclAllGather(mine.data(), all.data(), mine.bytes(), ncclUint8, comm_, stream_),
                   "ncclAllGather");
    group("all_gather", all, parts, [&](const Tensor& place, int r) {
      const void* from = r == rank() ? mine.data() : place.data();
      return ncclBroadcast(from, place.data(), place.bytes(), ncclUint8, r, comm_, stream_);
    });
  }

  void reduce_scatter(const Tensor& mine, const Tensor& all,
                      const std::vector<int64_t>& parts) override {
    check_parts(all, mine, parts);
    const ncclDataType_t type = summable(all);
    ++calls_;
    bytes_sent_ += all.bytes() - mine.bytes();
    if (all.empty()) return;
    if (alike(parts))
      return issue(
          ncclReduceScatter(all.data(), mine.data(), mine.size(), type, ncclSum, comm_, stream_),
          "ncclReduceScatter");
    group("reduce_scatter", all, parts, [&](const Tensor& place, int r) {
      void* to = r == rank() ? mine.data() : nullptr;
      return ncclReduce(place.data(), to, place.size(), type, ncclSum, r, comm_, stream_);
    });
  }

  void all_reduce(const Tensor& tensor, Reduction reduction) override {
    const ncclDataType_t type = summable(tensor);
    ++calls_;
    bytes_sent_ += 2 * tensor.bytes() * (size() - 1) / size();
    if (tensor.empty()) return;
    issue(ncclAllReduce(tensor.data(), tensor.data(), tensor.size(), type,
                        reduction == Reduction::sum ? ncclSum : ncclMax, comm_, stream_),
          "ncclAllReduce");
  }

  // Counted as a ring: everyone passes the tensor on but the last.
  void broadcast(const Tensor& tensor, int root) override {
    ++calls_;
    if ((rank() + 1) % size() != root) bytes_sent_ += tensor.bytes();
    if (tensor.empty()) return;
    issue(ncclBroadcast(tensor.data(), tensor.data(), tensor.bytes(), ncclUint8, root, comm_,
                        stream_),
          "ncclBroadcast");
  }

  // Of the hosts, after this rank's device has done what it was given.
  void barrier() override {
    device_.synchronize();
    host_.barrier();
  }

  // One communicator serves both streams: NCCL runs its collectives in the order they were issued.
  void beside(std::function<void(Communicator&)> work) override {
    order(device_.stream(), second_, begun_);
    stream_ = second_;
    try {
      work(*this);
    } catch (...) {
      stream_ = device_.stream();
      throw;
    }
    stream_ = device_.stream();
  }
  void join() override { order(second_, device_.stream(), ended_); }

  std::vector<int64_t> all_gather_host(int64_t value) override {
    return host_.all_gather_host(value);
  }
  std::vector<std::string> all_gather_text(const std::string& text) override {
    return host_.all_gather_text(text);
  }
  std::vector<double> sum_host(const std::vector<double>& values) override {
    return host_.sum_host(values);
  }
  void all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                       const std::vector<int32_t>& mine) override {
    host_.all_gather_list(all, parts, mine);
  }

 private:
  static bool alike(const std::vector<int64_t>& parts) {
    return std::equal(parts.begin() + 1, parts.end(), parts.begin());
  }

  void check(ncclResult_t result, const char* call) {
    if (result == ncclSuccess) return;
    failed_ = true;
    fail("{}: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(comm_));
  }

  // Waits until what was just called is on the stream.
  void issue(ncclResult_t result, const char* call) {
    const Clock::time_point start = Clock::now();
    while (result == ncclInProgress) {
      check(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
      if (result != ncclInProgress) break;
      if (seconds_since(start) > patience_) {
        failed_ = true;
        fail("{}: a rank did not answer within {} seconds", call, patience_);
      }
      std::this_thread::yield();
    }
    check(result, call);
  }

  // One call a rank that has rows, as one operation of NCCL's.
  template <class Call>
  void group(const char* name, const Tensor& all, const std::vector<int64_t>& parts, Call call) {
    check(ncclGroupStart(), "ncclGroupStart");
    int64_t row = 0;
    ncclResult_t worst = ncclSuccess;
    for (int r = 0; r < size(); ++r) {
      const Tensor place = all.slice(row, row + parts[r]);
      row += parts[r];
      if (place.empty()) continue;
      const ncclResult_t result = call(place, r);
      if (result != ncclSuccess && result != ncclInProgress) worst = result;
    }
    const ncclResult_t result = ncclGroupEnd();
    check(worst, name);
    issue(result, name);
  }

  // What is on `later` from now on comes after what is on `earlier` now.
  static void order(cudaStream_t earlier, cudaStream_t later, cudaEvent_t event) {
    cuda_check(cudaEventRecord(event, earlier), "cudaEventRecord");
    cuda_check(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
  }

  // While the host waits for the device, for so many seconds by now.
  void watch(double waited) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    if (state != ncclInProgress) check(state, "a collective");
    if (waited <= patience_) return;
    failed_ = true;
    fail("the device was not done within {} seconds: a rank is missing in a collective", patience_);
  }

  // Cleanly if nothing failed. A peer that is gone makes that impossible, so it has a time limit,
  // too.
  void end() {
    ncclResult_t state = ncclInternalError;
    if (!failed_ && std::uncaught_exceptions() == exceptions_) {
      const Clock::time_point start = Clock::now();
      state = ncclCommFinalize(comm_);
      while (state == ncclInProgress && seconds_since(start) < kEndSeconds) {
        std::this_thread::yield();
        if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) break;
      }
    }
    if (state == ncclSuccess)
      ncclCommDestroy(comm_);
    else
      ncclCommAbort(comm_);
  }

  CudaDevice& device_;
  Communicator& host_;
  const double patience_;  // seconds for an answer of the other ranks
  cudaStream_t stream_;    // of the next collective: the device's, or second_ within beside()
  cudaStream_t second_ = nullptr;
  cudaEvent_t begun_ = nullptr, ended_ = nullptr;
  ncclComm_t comm_ = nullptr;
  bool failed_ = false;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device& device, Communicator& host,
                                                     double seconds) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  MAXIM_CHECK(gpu != nullptr, "NCCL on {}", device.name());
  return std::make_unique<NcclCommunicator>(*gpu, host, seconds);
}

}  // namespace maxim

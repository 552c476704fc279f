// bench/collectives: what the ranks of this job exchange, verified, then timed, in the manner of
// nccl-tests: mpirun -np N build/bench/collectives [--device cpu|cuda] [--max_mb M] [--json F].
//
// A row: operation, bytes, median time of a call, algorithm bandwidth = bytes / time, bus bandwidth
// = algorithm bandwidth times the share of the bytes that must cross a rank's link, (N-1)/N, twice
// that for all_reduce, 1 for broadcast; elements that are wrong. Then the two patterns of a
// training step: documents' vectors gathered and their gradients scattered back, packed, uneven; a
// model's gradients summed in buckets, by bucket size.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/gradient_reducer.h"
#include "comm/launch.h"
#if MAXIM_NCCL
#include "comm/nccl_communicator.h"
#endif
#include "kernels/backend.h"
#include "runtime/error.h"

namespace maxim::bench {
namespace {

constexpr int kWidth = 128;  // of a token's vector

struct Options {
  std::string device = "auto", json;
  int repetitions = 7;
  int64_t max_mb = 64;
};

// Small whole numbers: their sums are exact in any order, so every element can be verified.
float value(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 11 - 5); }

class Bench {
 public:
  Bench(World& world, const Options& options)
      : options_(options),
        host_(*world.communicator),
        backend_(make_backend(options.device, false, world.local_rank)),
        communicator_(&host_),
        rank_(world.rank),
        size_(world.size) {
#if MAXIM_NCCL
    if (backend_.device->name() != "cpu" && size_ > 1) {
      nccl_ = make_nccl_communicator(*backend_.device, host_, world.timeout);
      communicator_ = nccl_.get();
    }
#endif
  }

  void run() {
    print_head();
    for (int64_t bytes = 4096; bytes <= options_.max_mb << 20; bytes *= 8) primitives(bytes);
    for (const int64_t documents : {32, 256}) embeddings(documents);
    for (const double mb : {1, 5, 25, 100, 1000}) gradients(22'700'000, mb);
  }
  bool wrong() const { return wrong_ > 0; }

 private:
  float sum(int64_t i) const {
    float total = 0;
    for (int r = 0; r < size_; ++r) total += value(r, i);
    return total;
  }
  void fill(const Tensor& tensor, int64_t first = 0) {
    std::vector<float> values(tensor.size());
    for (int64_t i = 0; i < tensor.size(); ++i) values[i] = value(rank_, first + i);
    backend_.device->copy_in(tensor, values.data());
  }
  int64_t count_wrong(const Tensor& tensor, const std::function<float(int64_t)>& at) {
    std::vector<float> got(tensor.size());
    backend_.device->copy_out(got.data(), tensor);
    int64_t wrong = 0;
    for (int64_t i = 0; i < tensor.size(); ++i) wrong += got[i] != at(i);
    return static_cast<int64_t>(host_.sum_host({static_cast<double>(wrong)})[0]);
  }
  // Median seconds of a call, of the slowest rank.
  double time(const std::function<void()>& call) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    for (int i = 0; i <= options_.repetitions; ++i) {
      backend_.device->synchronize();
      host_.barrier();
      const auto begin = Clock::now();
      call();
      backend_.device->synchronize();
      const double own = std::chrono::duration<double>(Clock::now() - begin).count();
      const std::vector<int64_t> all = host_.all_gather_host(std::llround(own * 1e9));
      if (i > 0)  // the first one warms up
        seconds.push_back(static_cast<double>(*std::max_element(all.begin(), all.end())) * 1e-9);
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }

  void print_head() const {
    if (rank_ != 0) return;
    std::printf("%d ranks on %s\n%-34s %12s %10s %10s %10s %7s\n", size_,
                backend_.device->name().c_str(), "operation", "bytes", "time (us)", "algbw GB/s",
                "busbw GB/s", "#wrong");
  }
  // `factor`: bus bandwidth over algorithm bandwidth.
  void row(const std::string& name, int64_t bytes, double seconds, double factor, int64_t wrong) {
    wrong_ += wrong;
    if (rank_ != 0) return;
    const double rate = static_cast<double>(bytes) / seconds * 1e-9;
    if (wrong > 0)
      std::printf("%-34s %12lld %10s %10s %10s %7lld\n", name.c_str(),
                  static_cast<long long>(bytes), "WRONG", "", "", static_cast<long long>(wrong));
    else
      std::printf("%-34s %12lld %10.1f %10.3f %10.3f %7d\n", name.c_str(),
                  static_cast<long long>(bytes), seconds * 1e6, rate, rate * factor, 0);
    std::fflush(stdout);
    if (options_.json.empty()) return;
    std::FILE* file = std::fopen(options_.json.c_str(), "a");
    if (file == nullptr) fail("cannot append to {}", options_.json);
    const nlohmann::json line = {
        {"operation", name},      {"ranks", size_},     {"device", backend_.device->name()},
        {"bytes", bytes},         {"seconds", seconds}, {"algbw", rate},
        {"busbw", rate * factor}, {"wrong", wrong}};
    std::fprintf(file, "%s\n", line.dump().c_str());
    std::fclose(file);
  }

  void primitives(int64_t bytes) {
    const int64_t part = bytes / 4 / size_, count = part * size_;
    const std::vector<int64_t> parts(size_, part);
    const double share = static_cast<double>(size_ - 1) / size_;
    DeviceTensor buffer(*backend_.device, DType::f32, count, "buffer");
    const Tensor all = buffer.view(), mine = all.slice(part * rank_, part * (rank_ + 1));
    const auto measure = [&](const char* name, double factor, const std::function<void()>& prepare,
                             const std::function<void()>& call, const Tensor& result,
                             const std::function<float(int64_t)>& at) {
      prepare();
      call();
      const int64_t wrong = count_wrong(result, at);
      row(name, count * 4, time(call), factor, wrong);
    };
    const int64_t first = part * rank_;
    measure(
        "all_gather", share, [&] { fill(mine, first); },
        [&] { communicator_->all_gather(all, mine, parts); }, all,
        [&](int64_t i) { return value(static_cast<int>(i / part), i); });
    measure(
        "reduce_scatter", share, [&] { fill(all); },
        [&] { communicator_->reduce_scatter(mine, all, parts); }, mine,
        [&](int64_t i) { return sum(first + i); });
    measure(
        "all_reduce", 2 * share, [&] { fill(all); },
        [&] { communicator_->all_reduce(all, Reduction::sum); }, all,
        [&](int64_t i) { return sum(i); });
    measure(
        "broadcast", 1, [&] { fill(all); }, [&] { communicator_->broadcast(all, 0); }, all,
        [&](int64_t i) { return value(0, i); });
    if (bytes == 4096) row("barrier", 0, time([&] { communicator_->barrier(); }), 1, 0);
  }

  // Documents of 30 to 90 tokens, more on higher ranks: packed, so the bytes are those of the
  // tokens. PyLate would pad all to the longest of all ranks.
  void embeddings(int64_t documents) {
    std::vector<int64_t> parts;
    int64_t tokens = 0, before = 0, longest = 0;
    for (int r = 0; r < size_; ++r) {
      parts.push_back(0);
      for (int64_t d = 0; d < documents; ++d) {
        const int64_t length = 30 + (d * 13 + r * 7) % (40 + 20 * r / size_);
        parts.back() += length;
        longest = std::max(longest, length);
      }
      if (r < rank_) before += parts.back();
      tokens += parts.back();
    }
    DeviceTensor buffer(*backend_.device, DType::f32, tokens * kWidth, "vectors");
    const Tensor all = buffer.view().reshape(tokens, kWidth);
    const Tensor mine = all.slice(before, before + parts[rank_]);
    const auto call = [&] {
      communicator_->all_gather(all, mine, parts);
      communicator_->reduce_scatter(mine, all, parts);
    };
    fill(mine, before * kWidth);
    communicator_->all_gather(all, mine, parts);
    int64_t wrong = count_wrong(all, [&](int64_t i) {
      int owner = 0;
      for (int64_t end = parts[0]; i / kWidth >= end; end += parts[++owner]) {
      }
      return value(owner, i);
    });
    fill(all);
    communicator_->reduce_scatter(mine, all, parts);
    wrong += count_wrong(mine, [&](int64_t i) { return sum(before * kWidth + i); });
    // The timed rounds feed on their own sums, which soon are infinite: only the time counts.
    row(fmt::format("vectors of {} documents a rank", documents), 2 * all.bytes(), time(call),
        static_cast<double>(size_ - 1) / size_, wrong);
    if (rank_ == 0)
      std::printf("%34s padded to the longest text: %.2f x the bytes\n", "",
                  static_cast<double>(documents * size_ * longest) / static_cast<double>(tokens));
  }

  void gradients(int64_t parameters, double bucket_mb) {
    const int64_t count =
        (parameters + GradientReducer::kUnit - 1) / GradientReducer::kUnit * GradientReducer::kUnit;
    DeviceTensor buffer(*backend_.device, DType::f32, count, "gradients");
    const auto bytes = static_cast<int64_t>(bucket_mb * (1 << 20));
    GradientReducer reducer(
        *backend_.ops, *communicator_, buffer.view(),
        {.first_bucket_bytes = std::min<int64_t>(bytes, 1 << 20), .bucket_bytes = bytes});
    fill(buffer.view());
    reducer.finish();
    const int64_t wrong = count_wrong(buffer.view(), [&](int64_t i) { return sum(i); });
    backend_.device->zero(buffer.view());
    row(fmt::format("22.7 M gradients, {} MB buckets", bucket_mb), buffer.view().bytes(),
        time([&] { reducer.finish(); }), 2 * static_cast<double>(size_ - 1) / size_, wrong);
  }

  Options options_;
  Communicator& host_;
  Backend backend_;
  std::unique_ptr<Communicator> nccl_;
  Communicator* communicator_;
  int rank_, size_;
  int64_t wrong_ = 0;
};

}  // namespace
}  // namespace maxim::bench

int main(int argc, char** argv) {
  maxim::bench::Options options;
  CLI::App app("Collectives of this job, verified and timed.");
  app.add_option("--device", options.device, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--repetitions", options.repetitions)->check(CLI::Range(1, 1000));
  app.add_option("--max_mb", options.max_mb, "Largest buffer in MiB")->check(CLI::Range(1, 4096));
  app.add_option("--json", options.json, "Append a line for each row to this file");
  return maxim::run_program(argc, argv, [&](maxim::World& world) {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return world.rank == 0 ? app.exit(error) : error.get_exit_code();
    }
    maxim::bench::Bench bench(world, options);
    bench.run();
    return bench.wrong() ? 1 : 0;
  });
}

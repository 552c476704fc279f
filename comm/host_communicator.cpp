#include "comm/host_communicator.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/progress.h"

namespace maxim {
namespace {

// 512 KB, so that a chunk stays in the second-level cache between its arrival and its sum. Two
// ranks on two cores, 22.7 M floats: 61 ms with 256 KB chunks, 57 ms with these, 60 with 16 MB.
constexpr int64_t kChunk = 512 << 10;
constexpr int64_t kIncomingBytes = 8 << 20;  // of all ranks together, when there are many

// The upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

float to_float(float x) { return x; }
float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
void assign(float& out, float value) { out = value; }
void assign(BFloat16& out, float value) {  // to the nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  out.bits = static_cast<uint16_t>(value != value ? bits >> 16 | 0x40 : rounded >> 16);
}

struct Sum {
  float operator()(float a, float b) const { return a + b; }
};
struct Max {
  float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

// out[i] = parts[0][i] op parts[1][i] op …, from the left, in f32. `out` may be one of the parts,
// so a block is complete before it is written.
template <class Element, class Op>
void combine(Element* out, const std::vector<const void*>& parts, int64_t count, Op op) {
  constexpr int64_t kBlock = 2048;  // 8 KB: stays in the first-level cache
#pragma omp parallel for if (count > 16 * kBlock)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    std::array<float, kBlock> block;
    float* __restrict b = block.data();
    const Element* __restrict first = static_cast<const Element*>(parts[0]) + begin;
    const Element* __restrict second = static_cast<const Element*>(parts[1]) + begin;
    for (int64_t i = 0; i < n; ++i) b[i] = op(to_float(first[i]), to_float(second[i]));
    for (size_t p = 2; p < parts.size(); ++p) {
      const Element* __restrict part = static_cast<const Element*>(parts[p]) + begin;
      for (int64_t i = 0; i < n; ++i) b[i] = op(b[i], to_float(part[i]));
    }
    for (int64_t i = 0; i < n; ++i) assign(out[begin + i], b[i]);
  }
}

template <class Element>
void combine(Element* out, const std::vector<const void*>& parts, int64_t count,
             Reduction reduction) {
  if (parts.size() == 1) {
    if (out != parts[0]) std::memmove(out, parts[0], count * sizeof(Element));
  } else if (reduction == Reduction::sum) {
    combine(out, parts, count, Sum());
  } else {
    combine(out, parts, count, Max());
  }
}

// Adds the time of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Calls `work` with the tensor's data as a pointer to its elements.
template <class Work>
void with_elements(const Tensor& tensor, Work work) {
  if (tensor.dtype() == DType::bf16)
    work(static_cast<BFloat16*>(tensor.data()));
  else
    work(tensor.as<float>());
}

}  // namespace

HostCommunicator::HostCommunicator(std::unique_ptr<Transport> transport,
                                   std::unique_ptr<Transport> second)
    : transport_(std::move(transport)), rank_(transport_->rank()), size_(transport_->size()) {
  const int64_t others = size_ - 1;
  chunk_ = std::min(kChunk, kIncomingBytes / std::max<int64_t>(1, others)) / 64 * 64;
  incoming_.resize(others * chunk_);
  begins_.resize(size_ + 1);
  parts_.resize(size_);
  counts_.resize(size_);
  displacements_.resize(size_ + 1);
  if (second != nullptr) second_ = std::make_unique<HostCommunicator>(std::move(second), nullptr);
}

HostCommunicator::~HostCommunicator() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostCommunicator::send(const void* data, int64_t bytes, int to) {
  transport_->send(data, bytes, to);
  bytes_sent_ += bytes;
}

void HostCommunicator::wait_for_all() {
  transport_->wait_for_receives();
  transport_->wait_for_sends();
}

void HostCommunicator::all_gather(const Tensor& all, const Tensor& mine,
                                  const std::vector<int64_t>& parts) {
  const Stopwatch stopwatch(seconds_);
  check_parts(all, mine, parts);
  ++calls_;
  const Waiting waiting;
  int64_t row = 0;
  for (int other = 0; other < size_; ++other) {
    const Tensor place = all.slice(row, row + parts[other]);
    row += parts[other];
    if (other != rank_) {
      transport_->receive(place.data(), place.bytes(), other);
      send(mine.data(), mine.bytes(), other);
    } else if (!mine.empty() && place.data() != mine.data()) {
      std::memcpy(place.data(), mine.data(), mine.bytes());
    }
  }
  wait_for_all();
}

void HostCommunicator::reduce_scatter(const Tensor& mine, const Tensor& all,
                                      const std::vector<int64_t>& parts) {
  const Stopwatch stopwatch(seconds_);
  check_parts(all, mine, parts);
  ++calls_;
  const Waiting waiting;
  for (int r = 0; r < size_; ++r) begins_[r + 1] = begins_[r] + parts[r] * all.cols();
  with_elements(all, [&](auto* elements) {
    using Element = std::remove_pointer_t<decltype(elements)>;
    reduce_slices(static_cast<Element*>(mine.data()), elements, Reduction::sum, false);
  });
}

void HostCommunicator::all_reduce(const Tensor& tensor, Reduction reduction) {
  const Stopwatch stopwatch(seconds_);
  ++calls_;
  const Waiting waiting;
  with_elements(tensor, [&](auto* elements) { all_reduce(elements, tensor.size(), reduction); });
}

template <class Element>
void HostCommunicator::all_reduce(Element* data, int64_t count, Reduction reduction) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(Element));
  if (bytes > chunk_ / 8) {
    for (int r = 0; r <= size_; ++r) begins_[r] = count * r / size_;
    reduce_slices(data + begins_[rank_], data, reduction, true);
    return;
  }
  // Small: everyone gets all parts and reduces for itself, one exchange instead of two.
  for (int other = 0, slot = 0; other < size_; ++other) {
    parts_[other] = other == rank_ ? static_cast<void*>(data) : &incoming_[chunk_ * slot];
    if (other == rank_) continue;
    transport_->receive(&incoming_[chunk_ * slot++], bytes, other);
    send(data, bytes, other);
  }
  wait_for_all();
  combine(data, parts_, count, reduction);
}

// What others need of this rank's contributions is offered at once, in chunks. Each rank then
// fetches and sums at its own pace (on one host Open MPI's receiver copies straight out of the
// sender's memory), so a rank that is held up delays nobody until the results are shared.
// Exchanging chunk by chunk in step cost twice to six times as much on busy cores.
template <class Element>
void HostCommunicator::reduce_slices(Element* out, Element* all, Reduction reduction, bool share) {
  constexpr int64_t kBytes = sizeof(Element);
  const int64_t chunk = chunk_ / kBytes;
  for (int i = 1; i < size_; ++i) {
    const int other = (rank_ + i) % size_;  // not everyone to rank 0 first
    for (int64_t begin = begins_[other]; begin < begins_[other + 1]; begin += chunk)
      send(all + begin, std::min(chunk, begins_[other + 1] - begin) * kBytes, other);
  }
  for (int64_t begin = begins_[rank_]; begin < begins_[rank_ + 1]; begin += chunk) {
    const int64_t count = std::min(chunk, begins_[rank_ + 1] - begin);
    for (int other = 0, slot = 0; other < size_; ++other) {
      if (other == rank_) {
        parts_[other] = all + begin;
        continue;
      }
      char* incoming = &incoming_[chunk_ * slot++];
      parts_[other] = incoming;
      transport_->receive(incoming, count * kBytes, other);
    }
    transport_->wait_for_receives();
    combine(out + (begin - begins_[rank_]), parts_, count, reduction);
  }
  transport_->wait_for_sends();  // the slices of others are read: they may become results
  if (!share) return;
  for (int i = 1; i < size_; ++i) {
    const int other = (rank_ + i) % size_;
    transport_->receive(all + begins_[other], (begins_[other + 1] - begins_[other]) * kBytes,
                        other);
    send(out, (begins_[rank_ + 1] - begins_[rank_]) * kBytes, other);
  }
  wait_for_all();
}

// The root hands each rank a slice, then all exchange their slices: nobody sends more than twice
// the tensor, however many ranks there are.
void HostCommunicator::broadcast(const Tensor& tensor, int root) {
  const Stopwatch stopwatch(seconds_);
  ++calls_;
  const Waiting waiting;
  char* data = static_cast<char*>(tensor.data());
  const auto begin = [&](int r) { return tensor.bytes() * r / size_; };
  for (int other = 0; other < size_ && rank_ == root; ++other)
    if (other != root) send(data + begin(other), begin(other + 1) - begin(other), other);
  if (rank_ != root)
    transport_->receive(data + begin(rank_), begin(rank_ + 1) - begin(rank_), root);
  wait_for_all();
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    if (rank_ != root)
      transport_->receive(data + begin(other), begin(other + 1) - begin(other), other);
    if (other != root) send(data + begin(rank_), begin(rank_ + 1) - begin(rank_), other);
  }
  wait_for_all();
}

void HostCommunicator::barrier() {
  ++calls_;
  all_gather_host(0);
}

void HostCommunicator::beside(std::function<void(Communicator&)> work) {
  if (second_ == nullptr) return work(*this);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void HostCommunicator::join() {
  if (second_ == nullptr) return;
  const Stopwatch stopwatch(seconds_);
  const Waiting waiting;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  bytes_sent_ += std::exchange(second_->bytes_sent_, 0);
  calls_ += std::exchange(second_->calls_, 0);
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void HostCommunicator::serve() {
  // The cores are the main thread's. OpenMP counts threads for each thread that begins a region,
  // and would give this one a whole host's.
  omp_set_num_threads(1);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void(Communicator&)> work = std::move(queue_.front());
    queue_.pop_front();
    if (failure_ != nullptr) continue;  // the job is about to end: see join
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work(*second_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    failure_ = failure;
    changed_.notify_all();
  }
}

std::vector<int64_t> HostCommunicator::all_gather_host(int64_t value) {
  const Waiting waiting;
  std::vector<int64_t> values(size_, value);
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    transport_->receive(&values[other], sizeof(value), other);
    transport_->send(&values[rank_], sizeof(value), other);
  }
  wait_for_all();
  return values;
}

// counts_ and displacements_ are in elements.
template <class T>
void HostCommunicator::gather_lists(std::vector<T>& all, const T* mine, size_t count) {
  const Waiting waiting;
  counts_ = all_gather_host(static_cast<int64_t>(count));
  std::partial_sum(counts_.begin(), counts_.end(), displacements_.begin() + 1);
  all.resize(displacements_.back());
  std::copy(mine, mine + count, all.begin() + displacements_[rank_]);
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    transport_->receive(all.data() + displacements_[other], counts_[other] * sizeof(T), other);
    transport_->send(mine, count * sizeof(T), other);
  }
  wait_for_all();
}

std::vector<std::string> HostCommunicator::all_gather_text(const std::string& text) {
  std::vector<char> all;
  gather_lists(all, text.data(), text.size());
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r)
    texts.emplace_back(all.data() + displacements_[r], static_cast<size_t>(counts_[r]));
  return texts;
}

void HostCommunicator::all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                                       const std::vector<int32_t>& mine) {
  gather_lists(all, mine.data(), mine.size());
  parts.assign(counts_.begin(), counts_.end());
}

std::vector<double> HostCommunicator::sum_host(const std::vector<double>& values) {
  std::vector<double> all;
  gather_lists(all, values.data(), values.size());
  MAXIM_CHECK(all.size() == values.size() * size_, "{} values, {} on all ranks", values.size(),
              all.size());
  std::vector<double> sums(values.size(), 0.0);
  for (int r = 0; r < size_; ++r)
    for (size_t i = 0; i < values.size(); ++i) sums[i] += all[r * values.size() + i];
  return sums;
}

}  // namespace maxim

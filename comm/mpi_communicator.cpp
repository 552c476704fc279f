#include "comm/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace maxim {
namespace {

constexpr int kTag = 1;
constexpr int64_t kPieceBytes = 4 << 20;  // of one message: MPI counts have 31 bits

// Floats: 512 KB, so that a chunk stays in the second-level cache between its arrival and its sum.
// Two ranks on two cores, 22.7 M floats: 61 ms with 64 KB chunks, 57 ms with these, 60 with 4 MB.
constexpr int64_t kChunk = 128 << 10;
constexpr int64_t kIncomingBytes = 8 << 20;  // of all ranks together, when there are many

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail("{} failed: {}", call, std::string(text, length));
}

struct Sum {
  float operator()(float a, float b) const { return a + b; }
};
struct Max {
  float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

// out[i] = parts[0][i] op parts[1][i] op …, from the left. `out` may be one of the parts, so a
// block is complete before it is written.
template <class Op>
void combine(float* out, const std::vector<const float*>& parts, int64_t count, Op op) {
  constexpr int64_t kBlock = 2048;  // 8 KB: stays in the first-level cache
#pragma omp parallel for if (count > 16 * kBlock)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    std::array<float, kBlock> block;
    float* __restrict b = block.data();
    const float* __restrict first = parts[0] + begin;
    const float* __restrict second = parts[1] + begin;
    for (int64_t i = 0; i < n; ++i) b[i] = op(first[i], second[i]);
    for (size_t p = 2; p < parts.size(); ++p) {
      const float* __restrict part = parts[p] + begin;
      for (int64_t i = 0; i < n; ++i) b[i] = op(b[i], part[i]);
    }
    std::memcpy(out + begin, b, n * sizeof(float));
  }
}

void combine(float* out, const std::vector<const float*>& parts, int64_t count,
             Reduction reduction) {
  if (parts.size() == 1) {
    if (out != parts[0]) std::memmove(out, parts[0], count * sizeof(float));
  } else if (reduction == Reduction::sum) {
    combine(out, parts, count, Sum());
  } else {
    combine(out, parts, count, Max());
  }
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm parent) {
  check(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  const int64_t others = size_ - 1;
  chunk_ = std::min(kChunk, kIncomingBytes / 4 / std::max<int64_t>(1, others));
  incoming_.resize(others * chunk_);
  parts_.resize(size_);
  begins_.resize(size_ + 1);
  counts_.resize(size_);
  displacements_.resize(size_);
}

MpiCommunicator::~MpiCommunicator() { MPI_Comm_free(&comm_); }

void MpiCommunicator::send(const void* data, int64_t bytes, int to) {
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    sends_.push_back(MPI_REQUEST_NULL);
    check(MPI_Isend(static_cast<const char*>(data) + begin,
                    static_cast<int>(std::min(kPieceBytes, bytes - begin)), MPI_BYTE, to, kTag,
                    comm_, &sends_.back()),
          "MPI_Isend");
  }
  bytes_sent_ += bytes;
}

void MpiCommunicator::receive(void* data, int64_t bytes, int from) {
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    receives_.push_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(static_cast<char*>(data) + begin,
                    static_cast<int>(std::min(kPieceBytes, bytes - begin)), MPI_BYTE, from, kTag,
                    comm_, &receives_.back()),
          "MPI_Irecv");
  }
}

void MpiCommunicator::wait(std::vector<MPI_Request>& requests) {
  check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
        "MPI_Waitall");
  requests.clear();
}

void MpiCommunicator::wait_for_all() {
  wait(receives_);
  wait(sends_);
}

void MpiCommunicator::all_gather(const Tensor& all, const Tensor& mine,
                                 const std::vector<int64_t>& parts) {
  check_parts(all, mine, parts);
  ++calls_;
  int64_t row = 0;
  for (int other = 0; other < size_; ++other) {
    const Tensor place = all.slice(row, row + parts[other]);
    row += parts[other];
    if (other != rank_) {
      receive(place.data(), place.bytes(), other);
      send(mine.data(), mine.bytes(), other);
    } else if (!mine.empty() && place.data() != mine.data()) {
      std::memcpy(place.data(), mine.data(), mine.bytes());
    }
  }
  wait_for_all();
}

void MpiCommunicator::reduce_scatter(const Tensor& mine, const Tensor& all,
                                     const std::vector<int64_t>& parts) {
  check_parts(all, mine, parts);
  ++calls_;
  for (int r = 0; r < size_; ++r) begins_[r + 1] = begins_[r] + parts[r] * all.cols();
  reduce_slices(mine.as<float>(), all.as<float>(), Reduction::sum, false);
}

void MpiCommunicator::all_reduce(const Tensor& tensor, Reduction reduction) {
  ++calls_;
  const int64_t count = tensor.size();
  float* data = tensor.as<float>();
  if (count > chunk_ / 8) {
    for (int r = 0; r <= size_; ++r) begins_[r] = count * r / size_;
    reduce_slices(data + begins_[rank_], data, reduction, true);
    return;
  }
  // Small: everyone gets all parts and reduces for itself, one exchange instead of two.
  for (int other = 0, slot = 0; other < size_; ++other) {
    parts_[other] = other == rank_ ? data : &incoming_[chunk_ * slot];
    if (other == rank_) continue;
    receive(&incoming_[chunk_ * slot++], tensor.bytes(), other);
    send(data, tensor.bytes(), other);
  }
  wait_for_all();
  combine(data, parts_, count, reduction);
}

// What others need of this rank's contributions is offered at once, in chunks. Each rank then
// fetches and sums at its own pace (on one host Open MPI's receiver copies straight out of the
// sender's memory), so a rank that is held up delays nobody until the results are shared.
// Exchanging chunk by chunk in step cost twice to six times as much on busy cores.
void MpiCommunicator::reduce_slices(float* out, float* all, Reduction reduction, bool share) {
  for (int i = 1; i < size_; ++i) {
    const int other = (rank_ + i) % size_;  // not everyone to rank 0 first
    for (int64_t begin = begins_[other]; begin < begins_[other + 1]; begin += chunk_)
      send(all + begin, std::min(chunk_, begins_[other + 1] - begin) * 4, other);
  }
  for (int64_t begin = begins_[rank_]; begin < begins_[rank_ + 1]; begin += chunk_) {
    const int64_t count = std::min(chunk_, begins_[rank_ + 1] - begin);
    for (int other = 0, slot = 0; other < size_; ++other) {
      if (other == rank_) {
        parts_[other] = all + begin;
        continue;
      }
      float* incoming = &incoming_[chunk_ * slot++];
      parts_[other] = incoming;
      receive(incoming, count * 4, other);
    }
    wait(receives_);
    combine(out + (begin - begins_[rank_]), parts_, count, reduction);
  }
  wait(sends_);  // the slices of others are read: they may become results
  if (!share) return;
  for (int i = 1; i < size_; ++i) {
    const int other = (rank_ + i) % size_;
    receive(all + begins_[other], (begins_[other + 1] - begins_[other]) * 4, other);
    send(out, (begins_[rank_ + 1] - begins_[rank_]) * 4, other);
  }
  wait_for_all();
}

void MpiCommunicator::broadcast(const Tensor& tensor, int root) {
  ++calls_;
  for (int64_t begin = 0; begin < tensor.bytes(); begin += kPieceBytes)
    check(MPI_Bcast(static_cast<char*>(tensor.data()) + begin,
                    static_cast<int>(std::min(kPieceBytes, tensor.bytes() - begin)), MPI_BYTE, root,
                    comm_),
          "MPI_Bcast");
  if (rank_ == root) bytes_sent_ += tensor.bytes() * (size_ - 1);
}

void MpiCommunicator::barrier() {
  ++calls_;
  check(MPI_Barrier(comm_), "MPI_Barrier");
}

std::vector<int64_t> MpiCommunicator::all_gather_host(int64_t value) {
  std::vector<int64_t> values(size_);
  check(MPI_Allgather(&value, 1, MPI_INT64_T, values.data(), 1, MPI_INT64_T, comm_),
        "MPI_Allgather");
  return values;
}

// counts_ and displacements_ are in elements; the lists of all ranks together are below 2^31.
template <class T>
void MpiCommunicator::gather_lists(std::vector<T>& all, const T* mine, size_t count) {
  MAXIM_CHECK(count * size_ < (size_t{1} << 31), "a list of {} elements on {} ranks", count, size_);
  const int own = static_cast<int>(count);
  check(MPI_Allgather(&own, 1, MPI_INT, counts_.data(), 1, MPI_INT, comm_), "MPI_Allgather");
  std::exclusive_scan(counts_.begin(), counts_.end(), displacements_.begin(), 0);
  all.resize(displacements_.back() + counts_.back());
  if (all.empty()) return;
  const MPI_Datatype type = sizeof(T) == 1 ? MPI_CHAR : sizeof(T) == 4 ? MPI_INT32_T : MPI_DOUBLE;
  check(MPI_Allgatherv(mine, own, type, all.data(), counts_.data(), displacements_.data(), type,
                       comm_),
        "MPI_Allgatherv");
}

std::vector<std::string> MpiCommunicator::all_gather_text(const std::string& text) {
  std::vector<char> all;
  gather_lists(all, text.data(), text.size());
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r)
    texts.emplace_back(all.data() + displacements_[r], static_cast<size_t>(counts_[r]));
  return texts;
}

void MpiCommunicator::all_gather_list(std::vector<int32_t>& all, std::vector<int64_t>& parts,
                                      const std::vector<int32_t>& mine) {
  gather_lists(all, mine.data(), mine.size());
  parts.assign(counts_.begin(), counts_.end());
}

std::vector<double> MpiCommunicator::sum_host(const std::vector<double>& values) {
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

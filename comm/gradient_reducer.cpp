#include "comm/gradient_reducer.h"

#include <algorithm>

namespace maxim {
namespace {

// Parts begin at multiples of this: 64 floats are two cache lines, or eight of a GPU's 32-byte
// sectors, and AdamW's groups of four stay whole.
constexpr int64_t kAlignment = 64;

Tensor slice(const Tensor& tensor, const GradientReducer::Range& range) {
  return tensor.slice(range.begin, range.end);
}

}  // namespace

GradientReducer::GradientReducer(Ops& ops, Communicator& communicator, const Tensor& gradients,
                                 const ReducerSettings& settings)
    : ops_(ops), communicator_(communicator), gradients_(gradients), settings_(settings) {
  MAXIM_CHECK(settings.bucket_bytes > 0 && settings.first_bucket_bytes > 0,
              "buckets of {} and {} bytes", settings.first_bucket_bytes, settings.bucket_bytes);
  MAXIM_CHECK(settings.wire == DType::f32 || settings.wire == DType::bf16, "gradients as {}",
              name_of(settings.wire));
  cut(gradients.size());
  for (const Bucket& bucket : buckets_) own_.push_back(bucket.own);
  std::reverse(own_.begin(), own_.end());
  sums_of_rank_.assign(communicator.size(), buckets());
  square_sums_ =
      DeviceTensor(ops.device(), DType::f32, buckets() * communicator.size(), "sums of squares");
  if (settings.wire != DType::f32 && communicator.size() > 1)
    wire_ = DeviceTensor(ops.device(), settings.wire, gradients.size(), "16-bit gradients");
}

// One rank has one bucket: there is nothing to overlap.
void GradientReducer::cut(int64_t size) {
  const int ranks = communicator_.size(), rank = communicator_.rank();
  int64_t bytes = settings_.first_bucket_bytes;
  for (int64_t end = size; end > 0; bytes = settings_.bucket_bytes) {
    const int64_t units = std::max<int64_t>(1, bytes / (kUnit * size_of(DType::f32)));
    int64_t begin = std::max<int64_t>(0, end - units * kUnit) / kUnit * kUnit;
    if (ranks == 1) begin = 0;
    Bucket bucket{{begin, end}, {}, {}};
    const auto boundary = [&](int r) {
      return r == ranks ? end : begin + (end - begin) * r / ranks / kAlignment * kAlignment;
    };
    for (int r = 0; r < ranks; ++r) bucket.parts.push_back(boundary(r + 1) - boundary(r));
    bucket.own = {boundary(rank), boundary(rank + 1)};
    buckets_.push_back(std::move(bucket));
    end = begin;
  }
}

void GradientReducer::begin_bucket(const Bucket& bucket) {
  if (communicator_.size() == 1) return;
  Tensor all = slice(gradients_, bucket.range), own = slice(gradients_, bucket.own);
  if (!wire_.view().absent()) {
    all = slice(wire_.view(), bucket.range);
    own = slice(wire_.view(), bucket.own);
    ops_.convert(all, slice(gradients_, bucket.range));
  }
  communicator_.beside([this, &bucket, all, own](Communicator& second) {
    second.reduce_scatter(own, all, bucket.parts);
    if (!settings_.sharded) second.all_gather(all, own, bucket.parts);
  });
}

void GradientReducer::ready(int64_t begin) {
  while (next_ < buckets_.size() && buckets_[next_].range.begin >= begin)
    begin_bucket(buckets_[next_++]);
}

void GradientReducer::finish() {
  ready(0);
  next_ = 0;
  communicator_.join();
  const Tensor all_sums = square_sums_.view();
  const Tensor sums =
      all_sums.slice(buckets() * communicator_.rank(), buckets() * (communicator_.rank() + 1));
  if (!wire_.view().absent() && !settings_.sharded) ops_.convert(gradients_, wire_.view());
  for (int64_t b = 0; b < buckets(); ++b) {
    const Range& own = buckets_[b].own;
    if (!wire_.view().absent() && settings_.sharded)
      ops_.convert(slice(gradients_, own), slice(wire_.view(), own));
    ops_.square_sum(sums.slice(b, b + 1), slice(gradients_, own));
  }
  if (communicator_.size() > 1) communicator_.all_gather(all_sums, sums, sums_of_rank_);
}

void GradientReducer::share(const Tensor& values) {
  for (const Bucket& bucket : buckets_)
    communicator_.all_gather(slice(values, bucket.range), slice(values, bucket.own), bucket.parts);
}

}  // namespace maxim

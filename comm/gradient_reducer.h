// Sums the parameters' gradients over the ranks, in buckets, while the backward pass goes on.
//
// The flat gradient buffer becomes final from its end (projection, last layer) to its beginning
// (embeddings). It is cut into buckets from the end; as soon as one is final its reduce_scatter
// begins on the communicator's second queue: part r of each bucket becomes the sum on rank r, which
// is its owner. Unsharded, an all_gather of the parts follows, so that every rank has all sums, to
// the same bits as the owners.
//
// The squared norm is made of the parts too: each rank has one sum of squares a bucket, of what it
// owns, and all ranks get all of them. So it costs each rank its share of the buffer, and it has
// the same bits sharded or not.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "kernels/ops.h"
#include "runtime/device.h"

namespace maxim {

struct ReducerSettings {
  // Of float32 gradients. The first bucket is small so that the link starts early.
  int64_t first_bucket_bytes = 1 << 20;
  int64_t bucket_bytes = 25 << 20;
  DType wire = DType::f32;  // or bf16: half the bytes, one rounding before and one after the sum
  bool sharded = false;     // only the owners get the sums
};

class GradientReducer {
 public:
  struct Range {
    int64_t begin, end;  // elements of the flat buffer
  };
  // Buckets begin at multiples of this, so that in a buffer that is padded to one the parts are
  // equal and aligned for 1 to 8 ranks and many other counts.
  static constexpr int64_t kUnit = 64 * 840;  // 840: the least common multiple of 1 … 8

  // `gradients` f32 [P]. All ranks have the same sizes and settings.
  GradientReducer(Ops& ops, Communicator& communicator, const Tensor& gradients,
                  const ReducerSettings& settings);

  // Elements from `begin` on are final: reduces the buckets that lie there. Nothing may change them
  // until finish(). All ranks call it with the same numbers, in a step's last backward pass.
  void ready(int64_t begin);
  // Reduces what is left. The device's later work finds the sums, and square_sums().
  void finish();
  // The sums of squares of all parts [buckets * ranks], for Ops::adamw.
  Tensor square_sums() const { return square_sums_.view(); }
  // What this rank owns: its part of each bucket, ascending.
  const std::vector<Range>& own() const { return own_; }
  // Each rank's parts of `values` [P] to all ranks.
  void share(const Tensor& values);

  int64_t buckets() const { return static_cast<int64_t>(buckets_.size()); }
  int64_t device_bytes() const { return wire_.view().bytes() + square_sums_.view().bytes(); }

 private:
  struct Bucket {
    Range range, own;
    std::vector<int64_t> parts;  // elements, by rank
  };

  void cut(int64_t size);
  void begin_bucket(const Bucket& bucket);

  Ops& ops_;
  Communicator& communicator_;
  Tensor gradients_;
  ReducerSettings settings_;
  std::vector<Bucket> buckets_;  // from the buffer's end to its beginning
  std::vector<Range> own_;
  std::vector<int64_t> sums_of_rank_;  // square_sums by rank
  DeviceTensor wire_;                  // 16-bit gradients [P], absent with f32
  DeviceTensor square_sums_;
  size_t next_ = 0;  // bucket to reduce
};

}  // namespace maxim

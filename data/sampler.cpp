#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/error.h"
#include "runtime/philox.h"

namespace maxim {
namespace {

// Keys of dropout (kernels/dropout.h) differ from the seed by a text column in the upper word; no
// row has this many.
constexpr uint32_t kPermutationKey = 0x73616D70;

// A number in [0, n): the upper half of 64 random bits times n. Its bias, n / 2^64, is below 1e-9
// for 10^10 rows.
uint64_t draw_below(uint64_t n, uint64_t i, uint64_t epoch, uint64_t seed) {
  const Philox4 bits =
      philox(static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(epoch),
             static_cast<uint32_t>(epoch >> 32), static_cast<uint32_t>(seed),
             static_cast<uint32_t>(seed >> 32) ^ kPermutationKey);
  const uint64_t random = uint64_t{bits.x[1]} << 32 | bits.x[0];
  return static_cast<uint64_t>(static_cast<unsigned __int128>(random) * n >> 64);
}

}  // namespace

Sampler::Sampler(const SamplerSettings& settings) : settings_(settings) {
  SamplerSettings& s = settings_;
  MAXIM_CHECK(s.rows > 0 && s.per_device_batch > 0 && s.accumulation > 0,
              "rows {}, per_device_batch {}, accumulation {}", s.rows, s.per_device_batch,
              s.accumulation);
  MAXIM_CHECK(s.per_device_batch <= INT32_MAX, "per_device_batch {}", s.per_device_batch);
  MAXIM_CHECK(0 <= s.rank && s.rank < s.world_size, "rank {} of {}", s.rank, s.world_size);
  if (micro_batches_per_epoch() == 0)
    fail_input(
        "{} rows, but a batch needs {} ({} on each of {} ranks) and --dataloader_drop_last leaves "
        "out the smaller one: nothing is left to train on",
        s.rows, global_batch(), s.per_device_batch, s.world_size);
  s.accumulation = std::min(s.accumulation, micro_batches_per_epoch());
}

int64_t Sampler::global_batch() const { return settings_.per_device_batch * settings_.world_size; }

int64_t Sampler::micro_batches_per_epoch() const {
  const int64_t full = settings_.rows / global_batch();
  return settings_.drop_last || settings_.rows % global_batch() == 0 ? full : full + 1;
}

int64_t Sampler::steps_per_epoch() const {
  return (micro_batches_per_epoch() + settings_.accumulation - 1) / settings_.accumulation;
}

int64_t Sampler::rows_per_epoch() const {
  return std::min(settings_.rows, micro_batches_per_epoch() * global_batch());
}

std::pair<int64_t, int64_t> Sampler::row_range(int64_t step) {
  MAXIM_CHECK(step >= 0, "step {}", step);
  permute(step / steps_per_epoch());
  const int64_t step_rows = settings_.accumulation * global_batch();
  const int64_t begin = step % steps_per_epoch() * step_rows;
  return {begin, std::min(begin + step_rows, rows_per_epoch())};
}

std::vector<MicroBatch> Sampler::micro_batches(int64_t step) {
  const auto [step_begin, step_end] = row_range(step);
  std::vector<MicroBatch> result;
  for (int64_t begin = step_begin; begin < step_end; begin += global_batch()) {
    MicroBatch& batch = result.emplace_back();
    batch.global_rows = std::min(global_batch(), step_end - begin);
    batch.step_offset = begin - step_begin;
    batch.first = batch.global_rows * settings_.rank / settings_.world_size;
    const int64_t last = batch.global_rows * (settings_.rank + 1) / settings_.world_size;
    batch.rows.assign(order_.begin() + begin + batch.first, order_.begin() + begin + last);
  }
  return result;
}

std::vector<int64_t> Sampler::global_rows(int64_t step) {
  const auto [begin, end] = row_range(step);
  return {order_.begin() + begin, order_.begin() + end};
}

// Fisher and Yates, from the end: each of the n! orders is equally likely.
void Sampler::permute(int64_t epoch) {
  if (epoch == epoch_) return;
  order_.resize(static_cast<size_t>(settings_.rows));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  for (uint64_t i = order_.size() - 1; settings_.shuffle && i > 0; --i)
    std::swap(order_[i],
              order_[draw_below(i + 1, i, static_cast<uint64_t>(epoch), settings_.seed)]);
  epoch_ = epoch;
}

}  // namespace maxim

// Gradients summed in buckets: the bits of a sum in rank order, whatever the buckets; who owns
// what; the squared norm.
#include "comm/gradient_reducer.h"

#include <cmath>
#include <numeric>

#include "runtime/philox.h"
#include "tests/catch.h"
#include "tests/mpi/places.h"
#include "tests/mpi/world.h"
#include "trainer/check_sync.h"

using namespace maxim;
using maxim_tests::Buffer;
using maxim_tests::Place;
using maxim_tests::places;
using maxim_tests::world;

namespace {

constexpr int64_t kUnit = GradientReducer::kUnit;

float value(int rank, int64_t i) {
  return 2 * uniform(philox(static_cast<uint32_t>(i), 0, rank, 5, 1, 2).x[0]) - 1;
}

struct Reduced {
  std::vector<float> gradients;
  std::vector<float> sums;  // of squares
  std::vector<GradientReducer::Range> own;
  int64_t buckets;
};

// A buffer of `size` elements that becomes final in `stages`.
Reduced reduce(const Place& place, int64_t size, const ReducerSettings& settings,
               const std::vector<int64_t>& stages) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = value(world().rank, i);
  const Buffer<float> gradients(place.device(), values);
  GradientReducer reducer(place.ops(), *place.communicator, gradients.view(), settings);
  for (int step = 0; step < 2; ++step) {  // the second finds the reducer as the first did
    place.device().copy_in(gradients.view(), values.data());
    for (const int64_t begin : stages) reducer.ready(begin);
    reducer.finish();
  }
  Reduced result;
  result.gradients = gradients.get();
  result.sums.resize(reducer.square_sums().size());
  place.device().copy_out(result.sums.data(), reducer.square_sums());
  result.own = reducer.own();
  result.buckets = reducer.buckets();
  return result;
}

// Whether `got` are the sums `want`, taken in rank order: to the bit, or, where the order is
// another, to the rounding of each addition, of numbers below the world size.
bool equal_sums(const Place& place, const float* got, const float* want, int64_t count) {
  const auto size = static_cast<float>(world().size);
  const float bound = place.in_rank_order() ? 0 : size * size * 6e-8f;
  for (int64_t i = 0; i < count; ++i)
    if (!(std::abs(got[i] - want[i]) <= bound)) return false;
  return true;
}

// The sums of all ranks' values, in rank order.
std::vector<float> sums_of(int64_t count) {
  std::vector<float> sums(count);
  for (int64_t i = 0; i < count; ++i) {
    sums[i] = value(0, i);
    for (int r = 1; r < world().size; ++r) sums[i] += value(r, i);
  }
  return sums;
}

void check_reduction(const Place& place, const std::vector<float>& want, int64_t bytes,
                     const std::vector<int64_t>& stages) {
  const auto count = static_cast<int64_t>(want.size());
  const int size = world().size;
  INFO(place.name << ", " << count << " elements, buckets of " << bytes << " bytes, "
                  << stages.size() << " stages, " << size << " ranks");
  double square_sum = 0;
  for (const float x : want) square_sum += static_cast<double>(x) * x;
  const ReducerSettings whole{.first_bucket_bytes = bytes, .bucket_bytes = bytes};
  ReducerSettings sharded = whole;
  sharded.sharded = true;
  const Reduced all = reduce(place, count, whole, stages),
                part = reduce(place, count, sharded, stages);
  if (size > 1 && bytes == 1) CHECK(all.buckets == std::max<int64_t>(1, count / kUnit));
  if (size == 1) CHECK(all.buckets == 1);
  CHECK(equal_sums(place, all.gradients.data(), want.data(), count));
  CHECK(all.sums == part.sums);
  double sum = 0;
  for (const float s : all.sums) sum += s;
  CHECK(sum == Approx(square_sum).epsilon(1e-6));
  int64_t owned = 0, behind = 0;
  bool equal = true, aligned = true;
  for (const auto& [begin, end] : part.own) {
    CHECK(begin >= behind);
    behind = end;
    owned += end - begin;
    aligned = aligned && (begin % 64 == 0);
    equal = equal && std::equal(all.gradients.begin() + begin, all.gradients.begin() + end,
                                part.gradients.begin() + begin);
  }
  CHECK(equal);
  CHECK(aligned);
  const std::vector<int64_t> shares = world().communicator->all_gather_host(owned);
  CHECK(std::accumulate(shares.begin(), shares.end(), int64_t{0}) == count);  // so no overlap
  if (count % kUnit == 0) CHECK(owned == count / size);
}

}  // namespace

TEST_CASE("gradient reducer: sums in rank order, whatever the buckets and the stages") {
  for (const int64_t count : {int64_t{1}, int64_t{1000}, kUnit, 5 * kUnit + 77, 9 * kUnit}) {
    const std::vector<float> want = sums_of(count);
    for (const Place& place : places())
      for (const int64_t bytes : {int64_t{1}, 3 * 4 * kUnit, int64_t{1} << 40})
        for (const std::vector<int64_t>& stages :
             {std::vector<int64_t>{}, {count - 1, count / 2, count / 3, 0}})
          check_reduction(place, want, bytes, stages);
  }
}

TEST_CASE("gradient reducer: share gives every rank what the owners have") {
  const int64_t count = 4 * kUnit;
  for (const Place& place : places()) {
    const Buffer<float> gradients(place.device(), std::vector<float>(count));
    GradientReducer reducer(place.ops(), *place.communicator, gradients.view(),
                            {.first_bucket_bytes = 1, .bucket_bytes = 1, .sharded = true});
    std::vector<float> own(count, NAN);
    for (const auto& [begin, end] : reducer.own())
      for (int64_t i = begin; i < end; ++i) own[i] = static_cast<float>(i);
    const Buffer<float> values(place.device(), own);
    reducer.share(values.view());
    const std::vector<float> shared = values.get();
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) wrong += shared[i] != static_cast<float>(i);
    CHECK(wrong == 0);
  }
}

TEST_CASE("check_sync names the tensor and the ranks that differ") {
  HostDevice device;
  BertConfig config;
  config.vocab_size = 20;
  config.hidden_size = 32;
  config.num_attention_heads = 1;
  config.num_hidden_layers = 1;
  config.intermediate_size = 48;
  config.max_position_embeddings = 10;
  Parameters parameters(device, config, 32, false);
  Communicator& communicator = *world().communicator;
  CHECK_NOTHROW(check_sync(parameters, device, communicator, 5));
  const int last = world().size - 1;
  const std::string name = parameters.list()[7].name;
  if (world().rank == last) parameters.value(name).as<float>()[3] += 1e-7f;
  std::string message = "no error";
  try {
    check_sync(parameters, device, communicator, 5);
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message == (last == 0 ? "no error"
                              : fmt::format("after step 5 the ranks do not have the same weights: "
                                            "{} differs on rank {} on {}",
                                            name, last, world().host)));
}

// Gradients summed in buckets: the bits of a sum in rank order, whatever the buckets; who owns
// what; the squared norm.
#include "comm/gradient_reducer.h"

#include <cmath>

#include "runtime/philox.h"
#include "tests/catch.h"
#include "tests/mpi/world.h"
#include "trainer/check_sync.h"

using namespace maxim;
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
Reduced reduce(int64_t size, const ReducerSettings& settings, const std::vector<int64_t>& stages) {
  HostDevice device;
  const std::unique_ptr<Ops> ops = make_cpu_ops(device);
  Reduced result;
  result.gradients.resize(size);
  const Tensor gradients = Tensor::of(result.gradients);
  GradientReducer reducer(*ops, *world().communicator, gradients, settings);
  for (int step = 0; step < 2; ++step) {  // the second finds the reducer as the first did
    for (int64_t i = 0; i < size; ++i) result.gradients[i] = value(world().rank, i);
    for (const int64_t begin : stages) reducer.ready(begin);
    reducer.finish();
  }
  result.sums.resize(reducer.square_sums().size());
  device.copy_out(result.sums.data(), reducer.square_sums());
  result.own = reducer.own();
  result.buckets = reducer.buckets();
  return result;
}

}  // namespace

TEST_CASE("gradient reducer: sums in rank order, whatever the buckets and the stages") {
  const int size = world().size;
  for (const int64_t count : {int64_t{1}, int64_t{1000}, kUnit, 5 * kUnit + 77, 9 * kUnit}) {
    std::vector<float> want(count);
    double square_sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      want[i] = value(0, i);
      for (int r = 1; r < size; ++r) want[i] += value(r, i);
      square_sum += static_cast<double>(want[i]) * want[i];
    }
    for (const int64_t bytes : {int64_t{1}, 3 * 4 * kUnit, int64_t{1} << 40})
      for (const std::vector<int64_t>& stages :
           {std::vector<int64_t>{}, {count - 1, count / 2, count / 3, 0}}) {
        INFO(count << " elements, buckets of " << bytes << " bytes, " << stages.size()
                   << " stages, " << size << " ranks");
        const ReducerSettings whole{.first_bucket_bytes = bytes, .bucket_bytes = bytes};
        ReducerSettings sharded = whole;
        sharded.sharded = true;
        const Reduced all = reduce(count, whole, stages), part = reduce(count, sharded, stages);
        if (size > 1 && bytes == 1) CHECK(all.buckets == std::max<int64_t>(1, count / kUnit));
        if (size == 1) CHECK(all.buckets == 1);
        CHECK(all.gradients == want);
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
          equal = equal && std::equal(want.begin() + begin, want.begin() + end,
                                      part.gradients.begin() + begin);
        }
        CHECK(equal);
        CHECK(aligned);
        const std::vector<int64_t> shares = world().communicator->all_gather_host(owned);
        int64_t total = 0;
        for (const int64_t share : shares) total += share;
        CHECK(total == count);  // and no overlap, or some element would be missing
        if (count % kUnit == 0) CHECK(owned == count / size);
      }
  }
}

TEST_CASE("gradient reducer: share gives every rank what the owners have") {
  const int64_t count = 4 * kUnit;
  HostDevice device;
  const std::unique_ptr<Ops> ops = make_cpu_ops(device);
  std::vector<float> gradients(count), values(count, NAN);
  GradientReducer reducer(*ops, *world().communicator, Tensor::of(gradients),
                          {.first_bucket_bytes = 1, .bucket_bytes = 1, .sharded = true});
  for (const auto& [begin, end] : reducer.own())
    for (int64_t i = begin; i < end; ++i) values[i] = static_cast<float>(i);
  reducer.share(Tensor::of(values));
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong += values[i] != static_cast<float>(i);
  CHECK(wrong == 0);
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

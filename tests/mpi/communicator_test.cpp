// Collectives against closed forms, at whatever number of ranks this runs.
#include <mpi.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/error.h"
#include "runtime/philox.h"
#include "tests/catch.h"
#include "tests/mpi/places.h"
#include "tests/mpi/world.h"

using namespace maxim;
using maxim_tests::Buffer;
using maxim_tests::Place;
using maxim_tests::places;
using maxim_tests::world;

namespace {

Communicator& communicator() { return *world().communicator; }
int rank() { return world().rank; }
int size() { return world().size; }

// A number in [-1, 1) that every rank can compute for every other.
float value(int r, int64_t i) {
  return 2 * uniform(philox(static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), r, 0, 1, 2)
                         .x[0]) -
         1;
}

std::vector<float> values(int r, int64_t count) {
  std::vector<float> v(count);
  for (int64_t i = 0; i < count; ++i) v[i] = value(r, i);
  return v;
}

// First index where they differ in bits, -1 if nowhere.
int64_t difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], 4) != 0) return static_cast<int64_t>(i);
  return -1;
}

// First index where got[i] is not the sum of all ranks' value(r, first + i), -1 if nowhere: the
// float sum in rank order to the bit; or, where the order is another, the exact sum to the rounding
// of size - 1 additions, each of half an ulp (2^-24) of at most the sum of magnitudes.
int64_t wrong_sum(const Place& place, const std::vector<float>& got, int64_t first = 0) {
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t at = first + static_cast<int64_t>(i);
    float in_order = value(0, at);
    double exact = in_order, magnitude = std::abs(exact);
    for (int r = 1; r < size(); ++r) {
      const float next = value(r, at);
      in_order += next;
      exact += next;
      magnitude += std::abs(next);
    }
    const bool right = place.in_rank_order()
                           ? got[i] == in_order
                           : std::abs(got[i] - exact) <= (size() - 1) * magnitude * 0x1p-24;
    if (!right) return static_cast<int64_t>(i);
  }
  return -1;
}

// Row counts for every rank: uneven with zeros, all on one rank, none at all, and large enough for
// several chunks and messages (1.05 M floats fill one 4 MB message).
std::vector<std::vector<int64_t>> partitions() {
  std::vector<std::vector<int64_t>> all(5, std::vector<int64_t>(size(), 0));
  for (int r = 0; r < size(); ++r) {
    all[0][r] = r % 2 == 0 ? 3 * r + 1 : 0;
    all[1][r] = r % 2 == 0 ? 0 : 70001;
    all[2][r] = 1;
    all[3][r] = 40000 - 17001 * (r % 3);
  }
  all[1][size() - 1] = 350003;
  return all;
}

struct Rows {
  int64_t all = 0, before = 0;  // before this rank's
};
Rows rows_of(const std::vector<int64_t>& parts) {
  Rows rows;
  for (int r = 0; r < size(); ++r) {
    if (r < rank()) rows.before += parts[r];
    rows.all += parts[r];
  }
  return rows;
}

uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}
float from_bf16(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
Tensor as_bf16(const Buffer<uint16_t>& buffer) {
  return Tensor(buffer.view().data(), DType::bf16, buffer.view().size());
}

}  // namespace

TEST_CASE("mpi: the world is what the launcher made") {
  CHECK(communicator().rank() == rank());
  CHECK(communicator().size() == size());
  const std::vector<int64_t> ranks = communicator().all_gather_host(rank());
  for (int r = 0; r < size(); ++r) CHECK(ranks[r] == r);
  CHECK(world().local_size == size());  // the tests run on one host
  CHECK(world().local_rank == rank());
  CHECK(world().threads >= 1);
  // Ranks started by variables alone make no call of MPI.
  int initialized = 0;
  MPI_Initialized(&initialized);
  const bool mpi = std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMIX_RANK");
  CHECK((initialized != 0) == mpi);
  CHECK(world().mpi == mpi);
  for (const Place& place : places()) {
    CHECK(place.communicator->rank() == rank());
    CHECK(place.communicator->size() == size());
  }
}

TEST_CASE("mpi: all_gather of uneven parts") {
  constexpr int64_t kColumns = 3;
  for (const Place& place : places())
    for (const std::vector<int64_t>& parts : partitions()) {
      INFO(place.name);
      const Rows rows = rows_of(parts);
      std::vector<float> expected;
      for (int r = 0; r < size(); ++r) {
        const std::vector<float> part = values(r, parts[r] * kColumns);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const std::vector<float> original = values(rank(), parts[rank()] * kColumns);
      const Buffer<float> mine(place.device(), original);
      const Buffer<float> all(place.device(), std::vector<float>(rows.all * kColumns, NAN));
      const int64_t sent = place.communicator->bytes_sent();
      place.communicator->all_gather(all.rows(rows.all, kColumns),
                                     mine.rows(parts[rank()], kColumns), parts);
      CHECK(difference(all.get(), expected) == -1);
      CHECK(difference(mine.get(), original) == -1);
      CHECK(place.communicator->bytes_sent() - sent ==
            static_cast<int64_t>(original.size()) * 4 * (size() - 1));

      // In place.
      std::vector<float> own(rows.all * kColumns, NAN);
      std::copy(original.begin(), original.end(), own.begin() + rows.before * kColumns);
      const Buffer<float> again(place.device(), own);
      const Tensor whole = again.rows(rows.all, kColumns);
      place.communicator->all_gather(whole, whole.slice(rows.before, rows.before + parts[rank()]),
                                     parts);
      CHECK(difference(again.get(), expected) == -1);
    }
}

TEST_CASE("mpi: all_gather of two-byte elements") {
  std::vector<int64_t> parts(size());
  for (int r = 0; r < size(); ++r) parts[r] = 2 * r + 1;  // odd byte counts in total
  for (const Place& place : places()) {
    INFO(place.name);
    const Buffer<uint16_t> mine(
        place.device(), std::vector<uint16_t>(parts[rank()], static_cast<uint16_t>(1000 + rank())));
    const Buffer<uint16_t> all(place.device(), std::vector<uint16_t>(size() * size(), 0));
    place.communicator->all_gather(all.view(), mine.view(), parts);
    const std::vector<uint16_t> got = all.get();
    size_t i = 0;
    for (int r = 0; r < size(); ++r)
      for (int64_t j = 0; j < parts[r]; ++j) CHECK(got[i++] == 1000 + r);
  }
}

TEST_CASE("mpi: reduce_scatter sums in rank order") {
  constexpr int64_t kColumns = 3;
  for (const Place& place : places())
    for (const std::vector<int64_t>& parts : partitions()) {
      INFO(place.name);
      const Rows rows = rows_of(parts);
      const std::vector<float> original = values(rank(), rows.all * kColumns);
      const Buffer<float> all(place.device(), original);
      const Buffer<float> mine(place.device(), std::vector<float>(parts[rank()] * kColumns, NAN));
      const int64_t sent = place.communicator->bytes_sent();
      place.communicator->reduce_scatter(mine.rows(parts[rank()], kColumns),
                                         all.rows(rows.all, kColumns), parts);
      CHECK(wrong_sum(place, mine.get(), rows.before * kColumns) == -1);
      CHECK(difference(all.get(), original) == -1);
      CHECK(place.communicator->bytes_sent() - sent == all.view().bytes() - mine.view().bytes());

      // In place: the other rows stay as they are.
      const Tensor whole = all.rows(rows.all, kColumns);
      place.communicator->reduce_scatter(whole.slice(rows.before, rows.before + parts[rank()]),
                                         whole, parts);
      std::vector<float> expected = original;
      const std::vector<float> sums = mine.get();
      std::copy(sums.begin(), sums.end(), expected.begin() + rows.before * kColumns);
      CHECK(difference(all.get(), expected) == -1);
    }
}

TEST_CASE("mpi: all_reduce sums in rank order, any size") {
  // Below and above the small path (16,384 floats), at its edge, around chunks (131,072) per rank.
  for (const Place& place : places())
    for (const int64_t count :
         {0, 1, 2, 3, 16383, 16384, 16385, 131072 * 2, 131072 * 4 + 1, 1000003}) {
      const Buffer<float> data(place.device(), values(rank(), count));
      place.communicator->all_reduce(data.view(), Reduction::sum);
      INFO(place.name << ", count " << count);
      CHECK(wrong_sum(place, data.get()) == -1);
    }
}

TEST_CASE("mpi: a large all_reduce sends the least possible and repeats bit for bit") {
  const int64_t count = 3000001;
  const std::vector<float> original = values(rank(), count);
  for (const Place& place : places()) {
    INFO(place.name);
    const Buffer<float> first(place.device(), original), second(place.device(), original);
    const int64_t sent = place.communicator->bytes_sent(), calls = place.communicator->calls();
    place.communicator->all_reduce(first.view(), Reduction::sum);
    // This rank's contributions to all slices but its own, and its own slice to all others. (A ring
    // has every rank send the mean of that.)
    const int64_t slice = count * (rank() + 1) / size() - count * rank() / size();
    const int64_t least = place.in_rank_order() ? 4 * (count - slice + slice * (size() - 1))
                                                : 4 * count * 2 * (size() - 1) / size();
    CHECK(place.communicator->bytes_sent() - sent == least);
    CHECK(place.communicator->calls() - calls == 1);
    place.communicator->all_reduce(second.view(), Reduction::sum);
    const std::vector<float> sums = first.get();
    CHECK(difference(sums, second.get()) == -1);
    // Every rank has the same bits: compare with rank 0's.
    place.communicator->broadcast(second.view(), 0);
    CHECK(difference(sums, second.get()) == -1);
  }
}

TEST_CASE("mpi: all_reduce max, NaN included") {
  for (const Place& place : places())
    for (const int64_t count : {5, 300001}) {
      std::vector<float> data = values(rank(), count);
      if (rank() == size() - 1) data[3] = NAN;
      if (rank() == 0) data[4] = -INFINITY;
      const Buffer<float> buffer(place.device(), data);
      place.communicator->all_reduce(buffer.view(), Reduction::max);
      data = buffer.get();
      int64_t wrong = -1;
      for (int64_t i = 0; i < count; ++i) {
        if (i == 3 || i == 4) continue;
        float largest = value(0, i);
        for (int r = 1; r < size(); ++r) largest = std::max(largest, value(r, i));
        if (data[i] != largest) wrong = i;
      }
      INFO(place.name);
      CHECK(wrong == -1);
      if (place.in_rank_order()) CHECK(std::isnan(data[3]));  // NCCL passes over NaN
      CHECK((size() == 1 ? std::isinf(data[4]) : std::isfinite(data[4])));
    }
}

TEST_CASE("mpi: broadcast from every root") {
  for (const Place& place : places())
    for (int root = 0; root < size(); ++root)
      for (const int64_t count : {0, 1, 1200001}) {  // 1.2 M floats: two messages
        INFO(place.name);
        const Buffer<float> data(place.device(), values(rank(), count));
        place.communicator->broadcast(data.view(), root);
        CHECK(difference(data.get(), values(root, count)) == -1);
      }
}

TEST_CASE("mpi: host messages") {
  for (const Place& place : places()) {
    Communicator& messages = *place.communicator;
    const std::vector<std::string> texts =
        messages.all_gather_text(std::string(rank() * 1000, 'a' + rank()));
    REQUIRE(static_cast<int>(texts.size()) == size());
    for (int r = 0; r < size(); ++r) CHECK(texts[r] == std::string(r * 1000, 'a' + r));
    for (const std::string& text : messages.all_gather_text("")) CHECK(text.empty());

    const std::vector<double> sums = messages.sum_host({1.0 * rank(), 0.25});
    CHECK(sums[0] == size() * (size() - 1) / 2);
    CHECK(sums[1] == 0.25 * size());
    CHECK(messages.sum_host({}).empty());

    std::vector<int32_t> list(rank() % 2 == 0 ? rank() + 1 : 0, 100 + rank()), all;
    std::vector<int64_t> parts;
    messages.all_gather_list(all, parts, list);
    std::vector<int32_t> expected;
    for (int r = 0; r < size(); ++r) {
      const int length = r % 2 == 0 ? r + 1 : 0;
      CHECK(parts[r] == length);
      expected.insert(expected.end(), length, 100 + r);
    }
    CHECK(all == expected);
  }
}

TEST_CASE("mpi: 16-bit sums") {
  // Whole numbers of up to 8 bits are exact in bf16; 256 + 1 + 1 is 258 in f32, but 256 when each
  // partial sum is rounded to bf16 (ties to even). In rank order the sum is taken in f32 and
  // rounded once; NCCL rounds each, by 1 at most, in an order of its own.
  for (const Place& place : places()) {
    INFO(place.name);
    for (const int64_t count : {5, 1000003}) {
      const Buffer<uint16_t> v(place.device(),
                               std::vector<uint16_t>(count, bf16_bits(rank() == 0 ? 256 : 1)));
      const float sum = 256.0f + static_cast<float>(size() - 1);
      const float rounded = size() == 2 ? 256 : size() == 4 ? 260 : sum;  // 257, 259: ties
      place.communicator->all_reduce(as_bf16(v), Reduction::sum);
      int64_t wrong = 0;
      for (const uint16_t bits : v.get())
        wrong += place.in_rank_order()
                     ? from_bf16(bits) != rounded
                     : std::abs(from_bf16(bits) - sum) > static_cast<float>(size() - 1);
      CHECK(wrong == 0);
    }
    std::vector<uint16_t> all(size(), bf16_bits(static_cast<float>(1 + rank())));
    all[0] = bf16_bits(NAN);
    const Buffer<uint16_t> mine(place.device(), {0}), whole(place.device(), all);
    place.communicator->reduce_scatter(as_bf16(mine), as_bf16(whole),
                                       std::vector<int64_t>(size(), 1));
    const uint16_t got = mine.get()[0];
    if (rank() == 0)
      CHECK((got & 0x7fff) > 0x7f80);
    else
      CHECK(got == bf16_bits(static_cast<float>(size() * (size() + 1) / 2)));
  }
}

TEST_CASE("mpi: the second queue works in order beside the first") {
  constexpr int64_t kCount = 300007;
  const std::vector<float> original = values(rank(), kCount);
  for (const Place& place : places()) {
    INFO(place.name);
    Communicator& first = *place.communicator;
    const Buffer<float> beside(place.device(), original), within(place.device(), original),
        last(place.device(), original);
    const int64_t sent = first.bytes_sent(), calls = first.calls();
    for (int round = 0; round < 3; ++round) {
      for (const Buffer<float>* buffer : {&beside, &within, &last})
        place.device().copy_in(buffer->view(), original.data());
      first.beside([&](Communicator& second) { second.all_reduce(beside.view(), Reduction::sum); });
      // After the first, when all ranks have the same, this changes nothing.
      first.beside([&](Communicator& second) { second.all_reduce(beside.view(), Reduction::max); });
      first.all_reduce(within.view(), Reduction::sum);
      first.beside([&](Communicator& second) { second.all_reduce(last.view(), Reduction::sum); });
      first.join();
      CHECK(wrong_sum(place, last.get()) == -1);
      CHECK(wrong_sum(place, within.get()) == -1);
      CHECK(wrong_sum(place, beside.get()) == -1);
    }
    CHECK(first.calls() - calls == 12);
    if (size() > 1) CHECK(first.bytes_sent() - sent > 12 * kCount);
    first.join();  // nothing begun: nothing to wait for
  }
}

// Can only fail by variables: mpirun ties a rank to its cores, and OpenMP counts those.
TEST_CASE("mpi: what runs beside takes no threads from the other ranks") {
  for (const Place& place : places()) {
    INFO(place.name);
    int threads = 0;
    place.communicator->beside([&](Communicator&) { threads = omp_get_max_threads(); });
    place.communicator->join();
    CHECK(threads >= 1);
    CHECK(threads <= omp_get_max_threads());
  }
}

TEST_CASE("mpi: an error beside is thrown by join, or at once") {
  for (const Place& place : places()) {
    INFO(place.name);
    Communicator& first = *place.communicator;
    CHECK_THROWS_AS((first.beside([](Communicator&) { fail("no bucket"); }), first.join()), Error);
    first.join();
    CHECK(first.all_gather_host(1).size() == static_cast<size_t>(size()));
    const Buffer<float> data(place.device(), values(rank(), 3));
    first.all_reduce(data.view(), Reduction::sum);
    CHECK(wrong_sum(place, data.get()) == -1);
  }
}

TEST_CASE("mpi: what does not fit is refused on every rank") {
  std::vector<int64_t> parts(size(), 1);
  parts[0] = 2;  // sums to one more than there is
  for (const Place& place : places()) {
    INFO(place.name);
    const Buffer<float> v(place.device(), std::vector<float>(size()));
    CHECK_THROWS_AS(place.communicator->all_gather(v.view(), v.view().slice(0, 1), parts), Error);
    const Buffer<int32_t> whole(place.device(), std::vector<int32_t>(size()));
    CHECK_THROWS_AS(place.communicator->all_reduce(whole.view(), Reduction::sum), Error);
  }
}

namespace {

// What `checked` threw on this rank: "input: …", "error: …" or "nothing".
std::string outcome(const std::function<void()>& work) {
  try {
    communicator().checked(work);
    return "nothing";
  } catch (const InputError& error) {
    return std::string("input: ") + error.what();
  } catch (const Error& error) {
    return std::string("error: ") + error.what();
  }
}

}  // namespace

TEST_CASE("mpi: checked agrees on the outcome") {
  CHECK(outcome([] {}) == "nothing");
  CHECK(outcome([] { fail_input("bad flag"); }) == "input: bad flag");
  CHECK(outcome([] { fail("disk full\nof everything"); }) == "error: disk full\nof everything");
  CHECK(outcome([] { throw std::bad_alloc(); }) == "error: out of memory");
  const int last = size() - 1;
  const std::string name = fmt::format("rank {} on {}: ", last, world().host);
  const std::string prefix = size() == 1 ? "" : name;
  const auto on_last = [&](const std::function<void()>& work) {
    return outcome([&] {
      if (rank() == last) work();
    });
  };
  CHECK(on_last([] { fail_input("bad row"); }) == "input: " + prefix + "bad row");
  CHECK(on_last([] { fail("disk full"); }) == "error: " + prefix + "disk full");
  CHECK(on_last([] { fail(""); }) == "error: " + prefix);
  CHECK(on_last([] { throw 1; }) == "error: " + prefix + "an exception of unknown type");

  // All fail, each with its own words: the lowest rank speaks.
  const std::string zero = size() == 1 ? "" : fmt::format("rank 0 on {}: ", world().host);
  CHECK(outcome([] { fail_input("row {}", rank()); }) == "input: " + zero + "row 0");
  // The same words, another kind of error: not alike.
  CHECK(outcome([&] {
          if (rank() == last) fail_input("bad");
          fail("bad");
        }) == (size() == 1 ? "input: bad" : "error: " + zero + "bad"));
  CHECK(outcome([] {}) == "nothing");
}

TEST_CASE("mpi: ranks that were given different facts are told the first difference") {
  CHECK_NOTHROW(communicator().demand_same(""));
  CHECK_NOTHROW(communicator().demand_same("rows 3\nhash 7\n"));
  const int last = size() - 1;
  std::string message = "no error";
  try {
    communicator().demand_same(rank() == last ? "rows 3\nhash 8\nmore\n" : "rows 3\nhash 7\n");
  } catch (const InputError& error) {
    message = error.what();
  }
  const std::string host = world().host;
  CHECK(message == (size() == 1
                        ? "no error"
                        : fmt::format("the ranks differ: rank 0 on {} has 'hash 7', rank {} on {} "
                                      "has 'hash 8'",
                                      host, last, host)));
  if (size() > 1)
    CHECK_THROWS_AS(communicator().demand_same(rank() == last ? "" : "rows 3\n"), InputError);
}

// Collectives against closed forms, at whatever number of ranks this runs.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/error.h"
#include "runtime/philox.h"
#include "tests/catch.h"
#include "tests/mpi/world.h"

using namespace maxim;
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

// The sum in rank order, in floats: what every rank must have to the bit.
float sum_of(int64_t i) {
  float sum = value(0, i);
  for (int r = 1; r < size(); ++r) sum += value(r, i);
  return sum;
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
}

TEST_CASE("mpi: all_gather of uneven parts") {
  constexpr int64_t kColumns = 3;
  for (const std::vector<int64_t>& parts : partitions()) {
    int64_t rows = 0, before = 0;
    for (int r = 0; r < size(); ++r) {
      if (r < rank()) before += parts[r];
      rows += parts[r];
    }
    std::vector<float> expected;
    for (int r = 0; r < size(); ++r) {
      const std::vector<float> part = values(r, parts[r] * kColumns);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    std::vector<float> mine = values(rank(), parts[rank()] * kColumns);
    std::vector<float> all(rows * kColumns, NAN);
    const int64_t sent = communicator().bytes_sent();
    communicator().all_gather(Tensor::of(all, rows, kColumns),
                              Tensor::of(mine, parts[rank()], kColumns), parts);
    CHECK(difference(all, expected) == -1);
    CHECK(communicator().bytes_sent() - sent ==
          static_cast<int64_t>(mine.size()) * 4 * (size() - 1));

    // In place.
    std::vector<float> again(rows * kColumns, NAN);
    const Tensor whole = Tensor::of(again, rows, kColumns);
    const Tensor own = whole.slice(before, before + parts[rank()]);
    if (!mine.empty()) std::memcpy(own.data(), mine.data(), mine.size() * 4);
    communicator().all_gather(whole, own, parts);
    CHECK(difference(again, expected) == -1);
  }
}

TEST_CASE("mpi: all_gather of two-byte elements") {
  std::vector<int64_t> parts(size());
  for (int r = 0; r < size(); ++r) parts[r] = 2 * r + 1;  // odd byte counts in total
  std::vector<uint16_t> mine(parts[rank()], static_cast<uint16_t>(1000 + rank()));
  std::vector<uint16_t> all(size() * size(), 0);
  communicator().all_gather(Tensor::of(all), Tensor::of(mine), parts);
  size_t i = 0;
  for (int r = 0; r < size(); ++r)
    for (int64_t j = 0; j < parts[r]; ++j) CHECK(all[i++] == 1000 + r);
}

TEST_CASE("mpi: reduce_scatter sums in rank order") {
  constexpr int64_t kColumns = 3;
  for (const std::vector<int64_t>& parts : partitions()) {
    int64_t rows = 0, before = 0;
    for (int r = 0; r < size(); ++r) {
      if (r < rank()) before += parts[r];
      rows += parts[r];
    }
    const std::vector<float> original = values(rank(), rows * kColumns);
    std::vector<float> all = original;
    std::vector<float> mine(parts[rank()] * kColumns, NAN), expected(mine.size());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = sum_of(before * kColumns + i);
    const int64_t sent = communicator().bytes_sent();
    communicator().reduce_scatter(Tensor::of(mine, parts[rank()], kColumns),
                                  Tensor::of(all, rows, kColumns), parts);
    CHECK(difference(mine, expected) == -1);
    CHECK(difference(all, original) == -1);
    CHECK(communicator().bytes_sent() - sent == static_cast<int64_t>(all.size() - mine.size()) * 4);
  }
}

TEST_CASE("mpi: all_reduce sums in rank order, any size") {
  // Below and above the small path (16,384 floats), at its edge, around chunks (131,072) per rank.
  for (const int64_t count :
       {0, 1, 2, 3, 16383, 16384, 16385, 131072 * 2, 131072 * 4 + 1, 1000003}) {
    std::vector<float> data = values(rank(), count), expected(count);
    for (int64_t i = 0; i < count; ++i) expected[i] = sum_of(i);
    communicator().all_reduce(Tensor::of(data), Reduction::sum);
    INFO("count " << count);
    CHECK(difference(data, expected) == -1);
  }
}

TEST_CASE("mpi: a large all_reduce sends the least possible and repeats bit for bit") {
  const int64_t count = 3000001;
  const std::vector<float> original = values(rank(), count);
  std::vector<float> first = original, second = original;
  const int64_t sent = communicator().bytes_sent(), calls = communicator().calls();
  communicator().all_reduce(Tensor::of(first), Reduction::sum);
  // This rank's contributions to all slices but its own, and its own slice to all others.
  const int64_t slice = count * (rank() + 1) / size() - count * rank() / size();
  CHECK(communicator().bytes_sent() - sent == 4 * (count - slice + slice * (size() - 1)));
  CHECK(communicator().calls() - calls == 1);
  communicator().all_reduce(Tensor::of(second), Reduction::sum);
  CHECK(difference(first, second) == -1);
  // Every rank has the same bits: compare with rank 0's.
  std::vector<float> of_root = first;
  communicator().broadcast(Tensor::of(of_root), 0);
  CHECK(difference(first, of_root) == -1);
}

TEST_CASE("mpi: all_reduce max, NaN included") {
  for (const int64_t count : {5, 300001}) {
    std::vector<float> data = values(rank(), count);
    if (rank() == size() - 1) data[3] = NAN;
    if (rank() == 0) data[4] = -INFINITY;
    communicator().all_reduce(Tensor::of(data), Reduction::max);
    int64_t wrong = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (i == 3 || i == 4) continue;
      float largest = value(0, i);
      for (int r = 1; r < size(); ++r) largest = std::max(largest, value(r, i));
      if (data[i] != largest) wrong = i;
    }
    CHECK(wrong == -1);
    CHECK(std::isnan(data[3]));
    CHECK((size() == 1 ? std::isinf(data[4]) : std::isfinite(data[4])));
  }
}

TEST_CASE("mpi: broadcast from every root") {
  for (int root = 0; root < size(); ++root) {
    for (const int64_t count : {0, 1, 1200001}) {  // 1.2 M floats: two messages
      std::vector<float> data = values(rank(), count);
      communicator().broadcast(Tensor::of(data), root);
      CHECK(difference(data, values(root, count)) == -1);
    }
  }
}

TEST_CASE("mpi: host messages") {
  const std::vector<std::string> texts =
      communicator().all_gather_text(std::string(rank() * 1000, 'a' + rank()));
  REQUIRE(static_cast<int>(texts.size()) == size());
  for (int r = 0; r < size(); ++r) CHECK(texts[r] == std::string(r * 1000, 'a' + r));
  for (const std::string& text : communicator().all_gather_text("")) CHECK(text.empty());

  const std::vector<double> sums = communicator().sum_host({1.0 * rank(), 0.25});
  CHECK(sums[0] == size() * (size() - 1) / 2);
  CHECK(sums[1] == 0.25 * size());
  CHECK(communicator().sum_host({}).empty());

  std::vector<int32_t> list(rank() % 2 == 0 ? rank() + 1 : 0, 100 + rank()), all;
  std::vector<int64_t> parts;
  communicator().all_gather_list(all, parts, list);
  std::vector<int32_t> expected;
  for (int r = 0; r < size(); ++r) {
    const int length = r % 2 == 0 ? r + 1 : 0;
    CHECK(parts[r] == length);
    expected.insert(expected.end(), length, 100 + r);
  }
  CHECK(all == expected);
}

TEST_CASE("mpi: 16-bit sums are taken in f32 and rounded once") {
  // Whole numbers of up to 8 bits are exact in bf16; 256 + 1 + 1 is 258 in f32, but 256 when each
  // partial sum is rounded to bf16 (ties to even).
  const auto bits_of = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return static_cast<uint16_t>(bits >> 16);
  };
  for (const int64_t count : {5, 1000003}) {
    std::vector<uint16_t> v(count, bits_of(rank() == 0 ? 256 : 1));
    const float sum = 256.0f + static_cast<float>(size() - 1);
    const uint16_t expected = bits_of(size() == 2   ? 256
                                      : size() == 4 ? 260
                                                    : sum);  // 257, 259: ties
    communicator().all_reduce(Tensor(v.data(), DType::bf16, count), Reduction::sum);
    CHECK(std::count(v.begin(), v.end(), expected) == count);
  }
  std::vector<uint16_t> all(size(), bits_of(static_cast<float>(1 + rank())));
  all[0] = bits_of(NAN);
  uint16_t mine = 0;
  communicator().reduce_scatter(Tensor(&mine, DType::bf16, 1),
                                Tensor(all.data(), DType::bf16, size()),
                                std::vector<int64_t>(size(), 1));
  if (rank() == 0)
    CHECK((mine & 0x7fff) > 0x7f80);
  else
    CHECK(mine == bits_of(static_cast<float>(size() * (size() + 1) / 2)));
}

TEST_CASE("mpi: the second queue works in order beside the first") {
  constexpr int64_t kCount = 300007;
  std::vector<float> beside = values(rank(), kCount), inline_ = beside, expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) expected[i] = sum_of(i);
  const int64_t sent = communicator().bytes_sent(), calls = communicator().calls();
  for (int round = 0; round < 3; ++round) {
    std::vector<float> doubled = values(rank(), kCount);
    beside = doubled;
    communicator().beside(
        [&](Communicator& second) { second.all_reduce(Tensor::of(beside), Reduction::sum); });
    communicator().beside([&](Communicator& second) {  // after the first: sums the sums
      doubled = beside;
      second.all_reduce(Tensor::of(doubled), Reduction::max);
    });
    inline_ = values(rank(), kCount);
    communicator().all_reduce(Tensor::of(inline_), Reduction::sum);
    communicator().join();
    CHECK(difference(inline_, expected) == -1);
    CHECK(difference(beside, expected) == -1);
    CHECK(difference(doubled, expected) == -1);
  }
  CHECK(communicator().calls() - calls == 9);
  if (size() > 1) CHECK(communicator().bytes_sent() - sent > 9 * kCount);
  communicator().join();  // nothing begun: nothing to wait for
}

TEST_CASE("mpi: an error beside is thrown by join") {
  communicator().beside([](Communicator&) { fail("no bucket"); });
  CHECK_THROWS_AS(communicator().join(), Error);
  communicator().join();
  CHECK(communicator().all_gather_host(1).size() == static_cast<size_t>(size()));
}

TEST_CASE("mpi: what does not fit is refused on every rank") {
  std::vector<float> v(size());
  std::vector<int64_t> parts(size(), 1);
  parts[0] = 2;  // sums to one more than there is
  CHECK_THROWS_AS(communicator().all_gather(Tensor::of(v), Tensor::of(v).slice(0, 1), parts),
                  Error);
  std::vector<int32_t> whole(size());
  CHECK_THROWS_AS(communicator().all_reduce(Tensor::of(whole), Reduction::sum), Error);
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

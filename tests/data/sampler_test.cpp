#include "data/sampler.h"

#include <algorithm>
#include <set>

#include "tests/catch.h"
#include "tests/data/files.h"

using maxim::MicroBatch;
using maxim::Sampler;
using maxim::SamplerSettings;

namespace {

Sampler sampler(int64_t rows, int64_t batch, int64_t accumulation = 1, int world = 1, int rank = 0,
                bool drop_last = false, bool shuffle = true, uint64_t seed = 42) {
  return Sampler({.rows = rows,
                  .per_device_batch = batch,
                  .accumulation = accumulation,
                  .rank = rank,
                  .world_size = world,
                  .seed = seed,
                  .shuffle = shuffle,
                  .drop_last = drop_last});
}

std::vector<int64_t> epoch_rows(Sampler& s, int64_t epoch) {
  std::vector<int64_t> rows;
  for (int64_t step = epoch * s.steps_per_epoch(); step < (epoch + 1) * s.steps_per_epoch();
       ++step) {
    const auto part = s.global_rows(step);
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

}  // namespace

TEST_CASE("sampler: a case on paper") {
  // 11 rows in order, 2 ranks of 2 rows, 2 micro-batches a step: 4 4 | 3.
  for (int rank = 0; rank < 2; ++rank) {
    Sampler s = sampler(11, 2, 2, 2, rank, false, false);
    REQUIRE(s.steps_per_epoch() == 2);
    REQUIRE(s.rows_per_epoch() == 11);
    const auto first = s.micro_batches(0), second = s.micro_batches(1);
    REQUIRE(first.size() == 2);
    REQUIRE(second.size() == 1);
    const auto check = [&](const MicroBatch& m, std::vector<int64_t> rows, int64_t first,
                           int64_t global_rows, int64_t step_offset) {
      CHECK(m.rows == rows);
      CHECK(m.first == first);
      CHECK(m.global_rows == global_rows);
      CHECK(m.step_offset == step_offset);
    };
    if (rank == 0) {
      check(first[0], {0, 1}, 0, 4, 0);
      check(first[1], {4, 5}, 0, 4, 4);
      check(second[0], {8}, 0, 3, 0);
    } else {
      check(first[0], {2, 3}, 2, 4, 0);
      check(first[1], {6, 7}, 2, 4, 4);
      check(second[0], {9, 10}, 1, 3, 0);
    }
    CHECK(s.micro_batches(2)[0].rows == first[0].rows);  // the next epoch, not shuffled
  }
}

TEST_CASE("sampler: every row once an epoch, another order each epoch, the same for every world") {
  const int64_t rows = GENERATE(1, 2, 3, 7, 24, 25, 100);
  const int64_t accumulation = GENERATE(1, 3);
  Sampler single = sampler(rows, 12, accumulation);
  std::vector<int64_t> all = epoch_rows(single, 0), sorted = all;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < rows; ++i) REQUIRE(sorted[i] == i);
  CHECK(static_cast<int64_t>(all.size()) == rows);
  if (rows >= 24) {
    CHECK(all != sorted);
    CHECK(all != epoch_rows(single, 1));
    CHECK(epoch_rows(single, 1) != epoch_rows(single, 2));
    Sampler other = sampler(rows, 12, accumulation, 1, 0, false, true, 43);
    CHECK(epoch_rows(other, 0) != all);
  }
  CHECK(epoch_rows(single, 0) == all);  // back from epoch 2

  for (const int world : {2, 3, 4, 6}) {
    std::vector<Sampler> ranks;
    for (int rank = 0; rank < world; ++rank)
      ranks.push_back(sampler(rows, 12 / world, accumulation, world, rank));
    for (int64_t step = 0; step < 3 * single.steps_per_epoch(); ++step) {
      REQUIRE(ranks[0].steps_per_epoch() == single.steps_per_epoch());
      const auto whole = single.micro_batches(step);
      std::vector<std::vector<MicroBatch>> parts;
      for (Sampler& s : ranks) parts.push_back(s.micro_batches(step));
      std::vector<int64_t> step_rows;
      for (size_t m = 0; m < whole.size(); ++m) {
        std::vector<int64_t> joined;
        for (const auto& part : parts) {
          REQUIRE(part.size() == whole.size());
          REQUIRE(part[m].first == static_cast<int64_t>(joined.size()));
          REQUIRE(part[m].global_rows == whole[m].global_rows);
          REQUIRE(part[m].step_offset == static_cast<int64_t>(step_rows.size()));
          const auto size = static_cast<int64_t>(part[m].rows.size());
          REQUIRE(std::abs(size * world - whole[m].global_rows) < world);  // even to one row
          joined.insert(joined.end(), part[m].rows.begin(), part[m].rows.end());
        }
        REQUIRE(joined == whole[m].rows);
        step_rows.insert(step_rows.end(), joined.begin(), joined.end());
      }
      REQUIRE(step_rows == single.global_rows(step));
    }
  }
}

TEST_CASE("sampler: fewer rows than ranks leave ranks without rows") {
  int64_t with_rows = 0;
  for (int rank = 0; rank < 5; ++rank) {
    Sampler s = sampler(3, 8, 4, 5, rank);
    REQUIRE(s.steps_per_epoch() == 1);
    const auto batches = s.micro_batches(0);
    REQUIRE(batches.size() == 1);
    CHECK(batches[0].global_rows == 3);
    with_rows += !batches[0].rows.empty();
  }
  CHECK(with_rows == 3);
}

TEST_CASE("sampler: drop_last leaves out the batch that is not full") {
  Sampler s = sampler(11, 2, 2, 2, 1, true);
  CHECK(s.steps_per_epoch() == 1);
  CHECK(s.rows_per_epoch() == 8);
  CHECK(epoch_rows(s, 0).size() == 8);
  CHECK(epoch_rows(s, 0) != epoch_rows(s, 1));
  CHECK(sampler(12, 2, 2, 2, 0, true).rows_per_epoch() == 12);
  const std::string error = maxim_tests::input_error([] { sampler(3, 2, 1, 2, 0, true); });
  CAPTURE(error);
  CHECK(error.find("3 rows") != std::string::npos);
  CHECK(error.find("needs 4") != std::string::npos);
  CHECK(sampler(4, 2, 1, 2, 0, true).steps_per_epoch() == 1);
}

TEST_CASE("sampler: absurd sizes do not overflow") {
  Sampler s = sampler(5, INT32_MAX, INT64_MAX, 1000, 999);
  CHECK(s.steps_per_epoch() == 1);
  CHECK(s.global_rows(0).size() == 5);
  CHECK(s.micro_batches(7)[0].rows.size() == 1);
  CHECK_THROWS_AS(sampler(0, 1), maxim::Error);
  CHECK_THROWS_AS(sampler(1, 0), maxim::Error);
  CHECK_THROWS_AS(sampler(1, 1, 1, 2, 2), maxim::Error);
}

TEST_CASE("sampler: each place is as likely for each row") {
  // 8 rows, 4,000 epochs: each row is expected 500 times at each place. The sum over the 64 cells
  // of (count - 500)^2 / 500 is 8/7 of a chi-squared number of 49 degrees of freedom: mean 56,
  // standard deviation 11.3. The bounds are 4 and 3.5 deviations away; a swap partner drawn below n
  // instead of i + 1, the usual fault, gives 600.
  Sampler s = sampler(8, 8);
  int64_t counts[8][8] = {};
  for (int64_t epoch = 0; epoch < 4000; ++epoch) {
    const auto rows = s.global_rows(epoch);
    for (size_t place = 0; place < 8; ++place) ++counts[place][rows[place]];
  }
  double chi_squared = 0;
  for (const auto& place : counts)
    for (const int64_t count : place) chi_squared += (count - 500.0) * (count - 500.0) / 500.0;
  CHECK(chi_squared < 100);
  CHECK(chi_squared > 20);
}

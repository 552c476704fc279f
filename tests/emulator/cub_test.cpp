// The CUB calls against plain sorts and sums.
#include <cuda_runtime.h>
#include <cub/cub.cuh>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"

namespace maxim_tests {
namespace {

using maxim_emulated::Fault;

template <class Key>
struct Pairs {
  std::vector<Key> keys;
  std::vector<int> values;
};

template <class Key>
Pairs<Key> sort_on_device(const std::vector<Key>& keys, int begin_bit, int end_bit) {
  const int count = static_cast<int>(keys.size());
  std::vector<int> positions(keys.size());
  std::iota(positions.begin(), positions.end(), 0);
  const DeviceBuffer<Key> keys_in(keys), keys_out(keys.size());
  const DeviceBuffer<int> values_in(positions), values_out(keys.size());
  size_t bytes = 0;
  const auto sort = [&](void* temporary) {
    return cub::DeviceRadixSort::SortPairs(temporary, bytes, keys_in.data(), keys_out.data(),
                                           values_in.data(), values_out.data(), count, begin_bit,
                                           end_bit, test_stream());
  };
  REQUIRE(sort(nullptr) == cudaSuccess);
  const DeviceBuffer<char> temporary(bytes);
  REQUIRE(sort(temporary.data()) == cudaSuccess);
  return {keys_out.to_host(), values_out.to_host()};
}

}  // namespace

TEST_CASE("SortPairs sorts by some bits and keeps equal keys in order") {
  const std::vector<uint32_t> keys = {5, 0x80000001, 3, 0x13, 3, 0xffffffff, 0, 0x23};
  REQUIRE(sort_on_device(keys, 0, 32).keys ==
          std::vector<uint32_t>{0, 3, 3, 5, 0x13, 0x23, 0x80000001, 0xffffffff});
  REQUIRE(sort_on_device(keys, 0, 4).values == std::vector<int>{6, 1, 2, 3, 4, 7, 0, 5});
  REQUIRE(sort_on_device(keys, 4, 8).values == std::vector<int>{0, 1, 2, 4, 6, 3, 7, 5});
  REQUIRE(sort_on_device(std::vector<int32_t>{3, -1, 0, -7}, 0, 32).keys ==
          std::vector<int32_t>{-7, -1, 0, 3});
}

TEST_CASE("SortPairs refuses too little storage and overlapping outputs") {
  const DeviceBuffer<uint32_t> keys(4);
  const DeviceBuffer<int> values(4), values_out(4);
  const DeviceBuffer<char> temporary(1000);
  size_t bytes = 1;
  REQUIRE(cub::DeviceRadixSort::SortPairs(temporary.data(), bytes, keys.data(), keys.data(),
                                          values.data(), values_out.data(), 4, 0, 32,
                                          test_stream()) == cudaErrorInvalidValue);
  bytes = 1000;
  REQUIRE_THROWS_AS(
      cub::DeviceRadixSort::SortPairs(temporary.data(), bytes, keys.data(), keys.data(),
                                      values.data(), values_out.data(), 4, 0, 32, test_stream()),
      Fault);
}

TEST_CASE("ExclusiveSum") {
  const DeviceBuffer<int> in(std::vector<int>{3, 1, 4, 1, 5}), out(5);
  size_t bytes = 0;
  REQUIRE(cub::DeviceScan::ExclusiveSum(nullptr, bytes, in.data(), out.data(), 5, test_stream()) ==
          cudaSuccess);
  const DeviceBuffer<char> temporary(bytes);
  for (int* to : {out.data(), in.data()})
    REQUIRE(cub::DeviceScan::ExclusiveSum(temporary.data(), bytes, in.data(), to, 5,
                                          test_stream()) == cudaSuccess);
  REQUIRE(out.to_host() == std::vector<int>{0, 3, 4, 8, 9});
  REQUIRE(in.to_host() == std::vector<int>{0, 3, 4, 8, 9});
}

}  // namespace maxim_tests

// cub::DeviceRadixSort for keys of 32 bits.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "emulated/library.h"

namespace cub {

struct DeviceRadixSort {
  // A stable sort by bits [begin_bit, end_bit) of the keys. As in CUB, a call with
  // temporary = nullptr only says how many bytes that takes, and the inputs are left as they are;
  // outputs that overlap inputs are a Fault.
  template <class Key, class Value>
    requires std::same_as<Key, uint32_t> || std::same_as<Key, int32_t>
  static cudaError_t SortPairs(void* temporary, size_t& temporary_bytes, const Key* keys_in,
                               Key* keys_out, const Value* values_in, Value* values_out,
                               int64_t count, int begin_bit = 0, int end_bit = 32,
                               cudaStream_t stream = nullptr) {
    const size_t needed = 256 + static_cast<size_t>(count) * (sizeof(Key) + sizeof(Value));
    if (temporary == nullptr) {
      temporary_bytes = needed;
      return cudaSuccess;
    }
    if (temporary_bytes < needed || begin_bit < 0 || end_bit > 32 || begin_bit > end_bit)
      return cudaErrorInvalidValue;
    const char* name = "cub::DeviceRadixSort::SortPairs";
    const size_t key_bytes = count * sizeof(Key), value_bytes = count * sizeof(Value);
    if (count > 0) {
      maxim_emulated::require_device_memory(name, temporary, needed);
      maxim_emulated::require_device_memory(name, keys_in, key_bytes);
      maxim_emulated::require_device_memory(name, keys_out, key_bytes);
      maxim_emulated::require_device_memory(name, values_in, value_bytes);
      maxim_emulated::require_device_memory(name, values_out, value_bytes);
      maxim_emulated::require_apart(name, keys_in, keys_out, key_bytes);
      maxim_emulated::require_apart(name, values_in, values_out, value_bytes);
    }
    return maxim_emulated::enqueue_library_call(name, stream, [=] {
      std::memset(temporary, 0xff, needed);
      const auto digits = [=](int64_t i) {
        const uint32_t sign = std::same_as<Key, int32_t> ? 0x80000000u : 0;
        const uint64_t bits = static_cast<uint32_t>(keys_in[i]) ^ sign;
        return (bits & ((uint64_t{1} << end_bit) - 1)) >> begin_bit;
      };
      std::vector<int64_t> order(count);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, {}, digits);
      for (int64_t i = 0; i < count; ++i) {
        keys_out[i] = keys_in[order[i]];
        values_out[i] = values_in[order[i]];
      }
    });
  }
};

}  // namespace cub

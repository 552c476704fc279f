// cub::DeviceScan for integers.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>

#include "emulated/library.h"

namespace cub {

struct DeviceScan {
  // out[i] = in[0] + … + in[i-1]; out may be in. A call with temporary = nullptr only says how many
  // bytes that takes.
  template <std::integral In, std::integral Out>
  static cudaError_t ExclusiveSum(void* temporary, size_t& temporary_bytes, const In* in, Out* out,
                                  int64_t count, cudaStream_t stream = nullptr) {
    const size_t needed = 256 + static_cast<size_t>(count) / 128 * sizeof(Out);
    if (temporary == nullptr) {
      temporary_bytes = needed;
      return cudaSuccess;
    }
    if (temporary_bytes < needed) return cudaErrorInvalidValue;
    const char* name = "cub::DeviceScan::ExclusiveSum";
    if (count > 0) {
      maxim_emulated::require_device_memory(name, temporary, needed);
      maxim_emulated::require_device_memory(name, in, count * sizeof(In));
      maxim_emulated::require_device_memory(name, out, count * sizeof(Out));
    }
    return maxim_emulated::enqueue_library_call(name, stream, [=] {
      std::memset(temporary, 0xff, needed);
      Out sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        const In value = in[i];
        out[i] = sum;
        sum = static_cast<Out>(sum + value);
      }
    });
  }
};

}  // namespace cub

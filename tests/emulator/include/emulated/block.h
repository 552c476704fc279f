// What a thread sees of its block: indices, shared memory, barriers, asynchronous copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <source_location>

#include "emulated/vector_types.h"

extern thread_local constinit uint3 threadIdx;
extern thread_local constinit uint3 blockIdx;
extern thread_local constinit dim3 blockDim;
extern thread_local constinit dim3 gridDim;
inline constexpr int warpSize = 32;

namespace maxim_emulated {

// A place in the source: what tells one barrier from another, and what reports name.
using Site = std::source_location;

// The dynamic shared memory of this block, aligned to 1,024 bytes. Every byte is 0xFF (a NaN) when
// the block starts; what lies behind its end is not accessible.
void* dynamic_shared();

// The static shared memory of this block that `key` stands for, aligned to 16 bytes; likewise.
void* static_shared(const void* key, size_t bytes);

// A fault of the calling thread unless the bytes lie in its block's shared memory and start at a
// multiple of `bytes`.
void check_shared(const void* address, size_t bytes);

// cp.async: a copy from global to shared memory that lands when this thread waits for its group.
// Until then all of the destination is 0xFF. Behind `source_bytes` the destination becomes zero.
void cp_async(void* shared, const void* global, size_t bytes, size_t source_bytes);
void cp_async_commit();
// Waits until at most the `newest` groups committed last are outstanding.
void cp_async_wait(int newest);

// A fault of the calling thread.
[[noreturn]] void fail_thread(const char* what);

// The votes of a block at a barrier.
struct Votes {
  int count;
  int threads;
};
Votes block_barrier(const char* kind, bool vote, const Site& site);

}  // namespace maxim_emulated

inline void __syncthreads(maxim_emulated::Site site = maxim_emulated::Site::current()) {
  maxim_emulated::block_barrier("__syncthreads", false, site);
}
inline int __syncthreads_or(int predicate,
                            maxim_emulated::Site site = maxim_emulated::Site::current()) {
  return maxim_emulated::block_barrier("__syncthreads_or", predicate != 0, site).count > 0;
}
inline int __syncthreads_and(int predicate,
                             maxim_emulated::Site site = maxim_emulated::Site::current()) {
  const auto votes = maxim_emulated::block_barrier("__syncthreads_and", predicate != 0, site);
  return votes.count == votes.threads;
}
inline int __syncthreads_count(int predicate,
                               maxim_emulated::Site site = maxim_emulated::Site::current()) {
  return maxim_emulated::block_barrier("__syncthreads_count", predicate != 0, site).count;
}

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
[[noreturn]] inline void __trap() { maxim_emulated::fail_thread("__trap()"); }

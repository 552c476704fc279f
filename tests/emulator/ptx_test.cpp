// kernels/cuda/ptx.cuh: fragment layouts against plain matrix products, asynchronous copies.
#include "kernels/cuda/ptx.cuh"

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device_buffer.h"

namespace maxim_tests {
namespace {

using maxim_emulated::dynamic_shared;

// Small integers: exact in every type, and so are their products' sums.
float a_value(int m, int k) { return static_cast<float>((m * 7 + k * 3) % 13 - 6); }
float b_value(int k, int n) { return static_cast<float>((k * 5 + n * 11) % 17 - 8); }
float c_value(int m, int n) { return static_cast<float>(m - 2 * n); }

template <class T>
uint32_t pack(float low, float high) {
  const T pair[2] = {T(low), T(high)};
  uint32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return bits;
}

// Fragments filled by hand, as the PTX ISA numbers their elements.
template <class T>
void multiply_registers(float* out) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  uint32_t a[4], b[2];
  float c[4];
  for (int r = 0; r < 4; ++r) {
    const int row = r == 0 || r == 2 ? g : g + 8, column = 2 * t + (r >= 2 ? 8 : 0);
    a[r] = pack<T>(a_value(row, column), a_value(row, column + 1));
  }
  for (int r = 0; r < 2; ++r)
    b[r] = pack<T>(b_value(2 * t + 8 * r, g), b_value(2 * t + 8 * r + 1, g));
  for (int i = 0; i < 4; ++i) c[i] = c_value(i < 2 ? g : g + 8, 2 * t + i % 2);
  maxim::mma_m16n8k16<T>(c, a, b);
  for (int i = 0; i < 4; ++i) out[(i < 2 ? g : g + 8) * 8 + 2 * t + i % 2] = c[i];
}

// Fragments from shared memory: A by one ldmatrix, B from [n, k] or [k, n] rows.
template <class T, bool b_is_k_by_n>
void multiply_shared(float* out) {
  T* a_tile = static_cast<T*>(dynamic_shared());  // [16, 16]
  T* b_tile = a_tile + 16 * 16;
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) a_tile[i] = T(a_value(i / 16, i % 16));
  for (int i = lane; i < 128; i += 32) {
    const int k = i / 8, n = i % 8;
    b_tile[b_is_k_by_n ? i : n * 16 + k] = T(b_value(k, n));
  }
  __syncthreads();
  uint32_t a[4], b[2];
  const int matrix = lane / 8, row = lane % 8;
  maxim::ldmatrix_x4(a, a_tile + (row + matrix % 2 * 8) * 16 + matrix / 2 * 8);
  if (b_is_k_by_n)
    maxim::ldmatrix_x2_transposed(b, b_tile + (row + matrix % 2 * 8) * 8);
  else
    maxim::ldmatrix_x2(b, b_tile + row * 16 + matrix % 2 * 8);
  float c[4] = {};
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) c[i] = c_value(i < 2 ? g : g + 8, 2 * t + i % 2);
  maxim::mma_m16n8k16<T>(c, a, b);
  for (int i = 0; i < 4; ++i) out[(i < 2 ? g : g + 8) * 8 + 2 * t + i % 2] = c[i];
}

// A, transposed by ldmatrix from [k, m] rows, leaves in registers what row-major rows would.
template <class T>
void load_transposed(uint32_t* out) {
  T* tile = static_cast<T*>(dynamic_shared());  // [16, 16], k by m
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) tile[i] = T(a_value(i % 16, i / 16));
  __syncthreads();
  uint32_t a[4];
  const int matrix = lane / 8, row = lane % 8;
  maxim::ldmatrix_x4_transposed(a, tile + (row + matrix / 2 * 8) * 16 + matrix % 2 * 8);
  for (int r = 0; r < 4; ++r) out[lane * 4 + r] = a[r];
}

void require_product(const std::vector<float>& found) {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      float right = c_value(m, n);
      for (int k = 0; k < 16; ++k) right += a_value(m, k) * b_value(k, n);
      INFO("row " << m << " column " << n);
      REQUIRE(found[m * 8 + n] == right);
    }
}

template <class... Parameters>
std::vector<float> run_warp(void (*kernel)(Parameters...)) {
  const DeviceBuffer<float> out(128);
  launch({.grid = 1, .block = 32, .shared_bytes = 768}, kernel, out.data());
  return out.to_host();
}

// Doubles 64 numbers that come through shared memory, 4 a thread.
template <bool wait>
void double_by_copies(const float* in, float* out, int count) {
  float* tile = static_cast<float*>(dynamic_shared());
  const int first = static_cast<int>(threadIdx.x) * 4;
  const int left = count - first;
  maxim::cp_async_16(tile + first, in + first, left >= 4 ? 16 : left > 0 ? left * 4 : 0);
  maxim::cp_async_commit();
  if (wait) maxim::cp_async_wait<0>();
  __syncthreads();
  out[first / 4] = 2 * (tile[63 - first] + tile[first]);
}

// Two groups: the first is there while the second is still on its way.
void wait_for_older(const float* in, float* out) {
  float* tile = static_cast<float*>(dynamic_shared());
  maxim::cp_async_16(tile, in);
  maxim::cp_async_commit();
  maxim::cp_async_16(tile + 4, in + 4);
  maxim::cp_async_commit();
  maxim::cp_async_wait<1>();
  out[0] = tile[3];
  out[1] = tile[7];
  maxim::cp_async_wait<0>();
  out[2] = tile[7];
}

void copy_misaligned(const float* in) { maxim::cp_async_16(dynamic_shared(), in + 1); }

std::vector<float> counted(int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

}  // namespace

TEST_CASE("mma and ldmatrix have the documented layouts") {
  require_product(run_warp(multiply_registers<__nv_bfloat16>));
  require_product(run_warp(multiply_registers<__half>));
  require_product(run_warp(multiply_shared<__nv_bfloat16, false>));
  require_product(run_warp(multiply_shared<__half, true>));
}

TEST_CASE("a transposed ldmatrix gives the fragments of the transposed tile") {
  const DeviceBuffer<uint32_t> out(128);
  launch({.grid = 1, .block = 32, .shared_bytes = 512}, load_transposed<__half>, out.data());
  const std::vector<uint32_t> a = out.to_host();
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r % 2 * 8, column = lane % 4 * 2 + r / 2 * 8;
      REQUIRE(a[lane * 4 + r] == pack<__half>(a_value(row, column), a_value(row, column + 1)));
    }
}

TEST_CASE("asynchronous copies land, and fill with zeros what they do not read") {
  const DeviceBuffer<float> in(counted(64)), out(16);
  launch({.grid = 1, .block = 16, .shared_bytes = 256}, double_by_copies<true>, in.data(),
         out.data(), 50);
  const std::vector<float> found = out.to_host();
  const auto value = [](int i) { return i < 50 ? static_cast<float>(i + 1) : 0.f; };
  for (int i = 0; i < 16; ++i) REQUIRE(found[i] == 2 * (value(63 - 4 * i) + value(4 * i)));
}

TEST_CASE("an asynchronous copy that nobody waits for leaves NaN") {
  const DeviceBuffer<float> in(counted(64)), out(16);
  launch({.grid = 1, .block = 16, .shared_bytes = 256}, double_by_copies<false>, in.data(),
         out.data(), 64);
  for (const float value : out.to_host()) REQUIRE(std::isnan(value));
}

TEST_CASE("a wait for all but one group leaves the last one out") {
  const DeviceBuffer<float> in(counted(8)), out(3);
  launch({.grid = 1, .block = 1, .shared_bytes = 32}, wait_for_older, in.data(), out.data());
  const std::vector<float> found = out.to_host();
  REQUIRE(found[0] == 4);
  REQUIRE(std::isnan(found[1]));
  REQUIRE(found[2] == 8);
}

TEST_CASE("a misaligned asynchronous copy is a fault") {
  const DeviceBuffer<float> in(counted(8));
  launch({.grid = 1, .block = 1, .shared_bytes = 32}, copy_misaligned, in.data());
  REQUIRE_THROWS_AS(cudaDeviceSynchronize(), maxim_emulated::Fault);
}

}  // namespace maxim_tests

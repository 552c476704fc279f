#include "bench/kernels/operands.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <string>

#include "tests/reference/random.h"

namespace maxim::bench {
namespace {

constexpr int64_t kPattern = 1 << 20;  // random numbers drawn for a tensor
constexpr double kBudget = 0.7;        // of the free memory: operations take scratch, too

// Bytes that /proc/meminfo calls available.
int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (int64_t kilobytes; file >> key; file.ignore(100, '\n'))
    if (key == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

uint16_t bfloat16_of(float x) {
  if (x != x) return 0x7FC0;  // rounding would carry a NaN's mantissa into the sign
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to nearest even
}

double number_of(DType type, uint16_t bits) {
  if (type == DType::bf16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  if (type == DType::f16) return static_cast<double>(std::bit_cast<_Float16>(bits));
  return bits;
}

}  // namespace

bool is_emulated(const Device& device) {
  return device.name().find("emulated") != std::string::npos;
}

int64_t memory_budget(const Device& device) {
  const bool host = device.name() == "cpu" || is_emulated(device);
  return host ? static_cast<int64_t>(kBudget * static_cast<double>(available_memory()))
              : std::numeric_limits<int64_t>::max();
}

Operands::~Operands() {
  for (void* block : blocks_) device().free(block);
}

Tensor Operands::take(DType type, Dims dims) {
  const int64_t rows = dims.begin()[0], columns = dims.size() == 2 ? dims.begin()[1] : 1;
  const int64_t bytes = rows * columns * size_of(type);
  if (bytes > left_) throw NoRoom(fmt::format("no room: {} bytes beside what is taken", bytes));
  try {
    blocks_.push_back(device().allocate(bytes, "an operand"));
  } catch (const Error& error) {
    throw NoRoom(error.what());
  }
  left_ -= bytes;
  return dims.size() == 2 ? Tensor(blocks_.back(), type, rows, columns)
                          : Tensor(blocks_.back(), type, rows);
}

// The rest is copied on the device from the beginning: quicker than from the host.
Tensor Operands::repeated(DType type, Dims dims, const std::vector<float>& pattern) {
  const Tensor tensor = take(type, dims);
  const Tensor flat(tensor.data(), type, tensor.size());
  int64_t done = std::min(tensor.size(), static_cast<int64_t>(pattern.size()));
  if (type == DType::f32) {
    device().copy_in(flat.slice(0, done), pattern.data());
  } else {
    std::vector<uint16_t> bits;
    for (const float x : pattern)
      bits.push_back(type == DType::bf16 ? bfloat16_of(x)
                                         : std::bit_cast<uint16_t>(static_cast<_Float16>(x)));
    device().copy_in(flat.slice(0, done), bits.data());
  }
  while (done < tensor.size()) {
    const int64_t more = std::min(done, tensor.size() - done);
    device().copy(flat.slice(done, done + more), flat.slice(0, more));
    done += more;
  }
  return tensor;
}

Tensor Operands::random(DType type, Dims dims, uint32_t seed, float scale) {
  int64_t size = 1;
  for (const int64_t d : dims) size *= d;
  return repeated(type, dims, maxim_tests::random_floats(std::min(size, kPattern), seed, scale));
}

Tensor Operands::filled(DType type, Dims dims, float value) {
  return repeated(type, dims, std::vector<float>(1024, value));
}

Tensor Operands::output(DType type, Dims dims) {
  return filled(type, dims, std::numeric_limits<float>::quiet_NaN());
}

Sequences Operands::put(const maxim_tests::Ragged& r) {
  return {.token_ids = put(r.token_ids),
          .positions = put(r.positions),
          .sequence_of = put(r.sequence_of),
          .offsets = put(r.offsets),
          .key_counts = put(r.key_counts),
          .random_rows = put(r.random_rows),
          .random_columns = put(r.random_columns),
          .scored_rows = put(r.scored_rows),
          .scored_offsets = put(r.scored_offsets),
          .longest = r.longest};
}

std::vector<double> Operands::get(const Tensor& tensor) const {
  if (tensor.dtype() == DType::f32) {
    std::vector<float> values(tensor.size());
    device().copy_out(values.data(), tensor);
    return {values.begin(), values.end()};
  }
  MAXIM_CHECK(size_of(tensor.dtype()) == 2, "elements of {}", name_of(tensor.dtype()));
  std::vector<uint16_t> bits(tensor.size());
  device().copy_out(bits.data(), tensor);
  std::vector<double> values;
  for (const uint16_t b : bits) values.push_back(number_of(tensor.dtype(), b));
  return values;
}

}  // namespace maxim::bench

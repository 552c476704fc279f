// A product in three steps: A and B are converted to fp32 and packed into tiles as high and as wide
// as the registers hold, with zeros beyond the edges; each pair of tiles gives one tile of D.
#include "tests/emulator/matmul.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "tests/emulator/launch.h"

namespace maxim_emulated {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kVectorBytes)));

// 2 x 6 vectors of sums, two of A and one of B fit the 16 registers of SSE and AVX.
constexpr int kVectors = 2, kTileColumns = 6;
constexpr int kTileRows = kVectors * kVectorBytes / static_cast<int>(sizeof(float));

int64_t tiles(int64_t size, int tile) { return (size + tile - 1) / tile; }

float round_to_tf32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7f800000) == 0x7f800000) return value;
  return std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

// packed[tile][column][row within the tile], for as many rows a tile as `tile_rows`.
std::vector<float> pack(const MatrixView& matrix, int tile_rows, bool tf32) {
  const int64_t count = tiles(matrix.rows, tile_rows);
  std::vector<float> packed(count * matrix.columns * tile_rows);
#pragma omp parallel for num_threads(host_threads())
  for (int64_t tile = 0; tile < count; ++tile) {
    const int64_t first = tile * tile_rows,
                  rows = std::min<int64_t>(tile_rows, matrix.rows - first);
    float* out = packed.data() + tile * matrix.columns * tile_rows;
    for (int64_t column = 0; column < matrix.columns; ++column, out += tile_rows)
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t index = (first + row) * matrix.row_step + column * matrix.column_step;
        const float value = load_element(matrix.type, matrix.data, index);
        out[row] = tf32 ? round_to_tf32(value) : value;
      }
  }
  return packed;
}

// sums[column][row] of one tile of D.
void multiply_tile(const float* a, const float* b, int64_t depth,
                   float (&sums)[kTileColumns][kTileRows]) {
  Floats total[kTileColumns][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k, a += kTileRows, b += kTileColumns) {
    Floats column[kVectors];
    for (int v = 0; v < kVectors; ++v)  // one by one: a copy of both goes through the stack
      std::memcpy(&column[v], reinterpret_cast<const char*>(a) + v * kVectorBytes, kVectorBytes);
    for (int j = 0; j < kTileColumns; ++j)
      for (int v = 0; v < kVectors; ++v) total[j][v] += column[v] * b[j];
  }
  std::copy_n(reinterpret_cast<const float*>(total), kTileColumns * kTileRows, &sums[0][0]);
}

void store_tile(const Matmul& matmul, int64_t first_row, int64_t first_column,
                const float (&sums)[kTileColumns][kTileRows]) {
  const MatrixView &c = matmul.c, &d = matmul.d;
  const int64_t rows = std::min<int64_t>(kTileRows, d.rows - first_row);
  const int64_t columns = std::min<int64_t>(kTileColumns, d.columns - first_column);
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = first_row + i, column = first_column + j;
      float value = matmul.alpha * sums[j][i];
      if (matmul.beta != 0)
        value +=
            matmul.beta * load_element(c.type, c.data, row * c.row_step + column * c.column_step);
      if (matmul.bias != nullptr) value += load_element(d.type, matmul.bias, row);
      store_element(d.type, d.data, row * d.row_step + column * d.column_step, value);
    }
}

}  // namespace

size_t element_bytes(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

float load_element(cudaDataType type, const void* data, int64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == CUDA_R_16BF ? bf16_to_float(bits) : half_to_float(bits);
}

void store_element(cudaDataType type, void* data, int64_t index, float value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(data)[index] = value;
  else
    static_cast<uint16_t*>(data)[index] =
        type == CUDA_R_16BF ? float_to_bf16(value) : float_to_half(value);
}

void multiply(const Matmul& matmul) {
  const int64_t depth = matmul.a.columns;
  const std::vector<float> a = pack(matmul.a, kTileRows, matmul.tf32);
  const std::vector<float> b = pack(matmul.b.transposed(), kTileColumns, matmul.tf32);
  const int64_t row_tiles = tiles(matmul.d.rows, kTileRows);
  const int64_t column_tiles = tiles(matmul.d.columns, kTileColumns);
#pragma omp parallel for collapse(2) num_threads(host_threads())
  for (int64_t i = 0; i < row_tiles; ++i)
    for (int64_t j = 0; j < column_tiles; ++j) {
      float sums[kTileColumns][kTileRows];
      multiply_tile(a.data() + i * depth * kTileRows, b.data() + j * depth * kTileColumns, depth,
                    sums);
      store_tile(matmul, i * kTileRows, j * kTileColumns, sums);
    }
}

void sum_columns(const MatrixView& matrix, cudaDataType type, void* sums) {
#pragma omp parallel for num_threads(host_threads())
  for (int64_t row = 0; row < matrix.rows; ++row) {
    float sum = 0;
    for (int64_t column = 0; column < matrix.columns; ++column)
      sum += load_element(matrix.type, matrix.data,
                          row * matrix.row_step + column * matrix.column_step);
    store_element(type, sums, row, sum);
  }
}

}  // namespace maxim_emulated

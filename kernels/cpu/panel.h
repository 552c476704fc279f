// Small matrix products on matrices that lie in cache: what attention and MaxSim are made of.
//
// A panel is a transposed block of rows: [width][vectors * kLanes] floats with one row a lane, so
// that a product with it has its results of one row in one lane and maxima, sums and dropout over
// the other side are vertical. Below, a tile of the result stays in registers for the whole depth:
// kTileRows x 2 vectors, kTileRows broadcasts and 2 loads a step for 2 kTileRows multiply-adds. Of
// a Zen 4 core's 108 GFLOP/s, MaxSim at depth 128 reaches 104 and attention's backward pass, whose
// operands are in L2, 82 at depth 32 and 90 at 64.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/vector_math.h"

namespace maxim {

constexpr int kPanelVectors = 2;
constexpr int kPanel = kPanelVectors * kLanes;  // rows of a full panel
// Rows of a register tile: 24 accumulators of the 32 registers of AVX-512, 12 of the 16 of AVX2 and
// SSE; the others hold two vectors of the panel and a broadcast.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;

// Calls visit(begin, end) for `rows` rows cut into tiles of at most kTileRows of nearly equal size:
// 64 rows are 4 x 11 + 2 x 10, not 5 x 12 + 4.
template <class Visit>
void for_each_tile(int64_t rows, Visit visit) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t i = 0; i < tiles; ++i) visit(rows * i / tiles, rows * (i + 1) / tiles);
}

// In each 16 bytes: elements P... of a (0..3) and b (4..7).
template <int P0, int P1, int P2, int P3, int... I>
Floats pick(Floats a, Floats b, std::integer_sequence<int, I...>) {
  constexpr int kPick[4] = {P0, P1, P2, P3};
  return __builtin_shufflevector(
      a, b, (I / 4 * 4 + kPick[I % 4] % 4 + (kPick[I % 4] >= 4 ? kLanes : 0))...);
}
template <int... P>
Floats pick(Floats a, Floats b) {
  return pick<P...>(a, b, std::make_integer_sequence<int, kLanes>());
}

// Four floats from each of rows[0], rows[4], rows[8], … side by side, `Lanes` in all.
template <int Lanes>
auto load_quads(const float* const* rows, int64_t column) {
  if constexpr (Lanes == 4) {
    typedef float Quad __attribute__((vector_size(16)));
    Quad quad;
    std::memcpy(&quad, rows[0] + column, sizeof quad);
    return quad;
  } else {
    const auto low = load_quads<Lanes / 2>(rows, column);
    const auto high = load_quads<Lanes / 2>(rows + Lanes / 2, column);
    if constexpr (Lanes == 8)
      return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    else
      return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                     15);
  }
}

// panel[k][lane] = scale * x[lane][k] for `count` rows of x, `stride` floats apart. `lanes` is
// count rounded up to kLanes or more; the lanes beyond `count` repeat the last row.
inline void pack_panel(float* panel, int64_t lanes, const float* x, int64_t stride, int64_t count,
                       int64_t width, float scale = 1) {
  for (int64_t first = 0; first < lanes; first += kLanes) {
    const float* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = x + std::min(first + i, count - 1) * stride;
    int64_t k = 0;
    for (; k + 4 <= width; k += 4) {
      const Floats a = load_quads<kLanes>(rows, k), b = load_quads<kLanes>(rows + 1, k);
      const Floats c = load_quads<kLanes>(rows + 2, k), d = load_quads<kLanes>(rows + 3, k);
      const Floats ab01 = pick<0, 4, 1, 5>(a, b), ab23 = pick<2, 6, 3, 7>(a, b);
      const Floats cd01 = pick<0, 4, 1, 5>(c, d), cd23 = pick<2, 6, 3, 7>(c, d);
      float* out = panel + k * lanes + first;
      store(out, pick<0, 1, 4, 5>(ab01, cd01) * scale);
      store(out + lanes, pick<2, 3, 6, 7>(ab01, cd01) * scale);
      store(out + 2 * lanes, pick<0, 1, 4, 5>(ab23, cd23) * scale);
      store(out + 3 * lanes, pick<2, 3, 6, 7>(ab23, cd23) * scale);
    }
    for (; k < width; ++k)
      for (int i = 0; i < kLanes; ++i) panel[k * lanes + first + i] = rows[i][k] * scale;
  }
}

// c[m, n] = (add ? c[m, n] : 0) + sum over k of a(m, k) b[k, n], k ascending, for `rows` x
// `columns`; columns is a multiple of kLanes. a(m, k) = a[m * a_row + k * a_step], so a may be
// transposed; b and c have contiguous rows b_row and c_row floats apart.
struct Product {
  float* c;
  int64_t c_row;
  const float* a;
  int64_t a_row, a_step;
  const float* b;
  int64_t b_row;
  int64_t rows, columns, depth;
  bool add = false;
};

// M rows and V vectors of the product, from row m and column n on.
template <int V, int M>
void multiply_tile(const Product& p, int64_t m0, int64_t n0) {
  float* c = p.c + m0 * p.c_row + n0;
  const float* a = p.a + m0 * p.a_row;
  const float* b = p.b + n0;
  Floats sum[M][V] = {};
  if (p.add)
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[m][v] = load(c + m * p.c_row + v * kLanes);
  for (int64_t k = 0; k < p.depth; ++k) {
    Floats x[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) x[v] = load(b + k * p.b_row + v * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[m][v] += x[v] * a[m * p.a_row + k * p.a_step];
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(c + m * p.c_row + v * kLanes, sum[m][v]);
}

using MultiplyTile = void (*)(const Product&, int64_t, int64_t);
template <int V, int... M>
constexpr std::array<MultiplyTile, kTileRows> multiply_tiles(std::integer_sequence<int, M...>) {
  return {multiply_tile<V, M + 1>...};
}

inline void multiply(const Product& p) {
  static constexpr auto kRows = std::make_integer_sequence<int, kTileRows>();
  static constexpr auto kTwo = multiply_tiles<2>(kRows), kOne = multiply_tiles<1>(kRows);
  for (int64_t n = 0; n < p.columns; n += 2 * kLanes) {
    const auto& tiles = n + kLanes < p.columns ? kTwo : kOne;
    for_each_tile(p.rows, [&](int64_t begin, int64_t end) { tiles[end - begin - 1](p, begin, n); });
  }
}

}  // namespace maxim

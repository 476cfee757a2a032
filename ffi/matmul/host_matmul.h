// GEMMs on a CPU whose elements do not depend on how many there are: each is a sum
// in an order that K alone decides, and computed by the same instructions in any tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fdjax/host_vector.h"

namespace fdjax::matmul {

// x is [M, K], the weight [N, K], y = x weight^T [M, N].
template <typename T>
struct HostMatmul {
  const T* x;
  const T* weight;
  float* y;
  int64_t m, n, k;
};

// Rows and columns of y that are summed together: their sums fit 16 registers.
inline constexpr int64_t kTileRows = 3, kTileColumns = 4;
// What a thread takes at a time: 48 rows of x of 4 KiB stay in the L2.
inline constexpr int64_t kBlockRows = 48, kBlockColumns = 32;
// Terms of a partial sum: four columns of the weight stay in the L1.
inline constexpr int64_t kDepth = 1024;

// Adds the terms `begin` to `end` to a tile of y, or begins it with them. A tile beyond
// the last row or column has the last one again, and does not store it.
template <typename V, typename T>
FDJAX_INLINE void add_tile(const HostMatmul<T>& p, int64_t row, int64_t column,
                           int64_t begin, int64_t end) {
  const T *x[kTileRows], *weight[kTileColumns];
  for (int64_t i = 0; i < kTileRows; ++i) x[i] = p.x + std::min(row + i, p.m - 1) * p.k;
  for (int64_t j = 0; j < kTileColumns; ++j) {
    weight[j] = p.weight + std::min(column + j, p.n - 1) * p.k;
  }
  V sums[kTileRows][kTileColumns] = {};
  int64_t d = begin;
  for (; d + kLanes<V> <= end; d += kLanes<V>) {
    V factors[kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) factors[i] = load<V>(x[i] + d);
    for (int64_t j = 0; j < kTileColumns; ++j) {
      const V w = load<V>(weight[j] + d);
      for (int64_t i = 0; i < kTileRows; ++i) sums[i][j] += factors[i] * w;
    }
  }
  if (const int rest = static_cast<int>(end - d); rest != 0) {
    for (int64_t j = 0; j < kTileColumns; ++j) {
      const V w = load_some<V>(weight[j] + d, rest);
      for (int64_t i = 0; i < kTileRows; ++i) {
        sums[i][j] += load_some<V>(x[i] + d, rest) * w;
      }
    }
  }
  for (int64_t i = 0; i < std::min(kTileRows, p.m - row); ++i) {
    float totals[kTileColumns];
    store_sums(totals, sums[i]);
    float* y = p.y + (row + i) * p.n + column;
    for (int64_t j = 0; j < std::min(kTileColumns, p.n - column); ++j) {
      y[j] = begin == 0 ? totals[j] : y[j] + totals[j];
    }
  }
}

inline int64_t block_rows(int64_t m) { return (m + kBlockRows - 1) / kBlockRows; }
inline int64_t blocks(int64_t m, int64_t n) {
  return block_rows(m) * ((n + kBlockColumns - 1) / kBlockColumns);
}

// One of the `blocks` of y; neighbours read the same columns of the weight.
template <typename V, typename T>
FDJAX_INLINE void compute_block(const HostMatmul<T>& p, int64_t block) {
  const int64_t first_row = block % block_rows(p.m) * kBlockRows;
  const int64_t first_column = block / block_rows(p.m) * kBlockColumns;
  const int64_t rows = std::min(first_row + kBlockRows, p.m);
  const int64_t columns = std::min(first_column + kBlockColumns, p.n);
  for (int64_t begin = 0; begin < p.k; begin += kDepth) {
    const int64_t end = std::min(begin + kDepth, p.k);
    for (int64_t column = first_column; column < columns; column += kTileColumns) {
      for (int64_t row = first_row; row < rows; row += kTileRows) {
        add_tile<V>(p, row, column, begin, end);
      }
    }
  }
}

}  // namespace fdjax::matmul

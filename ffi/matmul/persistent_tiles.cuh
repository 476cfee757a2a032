// Which tiles of y each cluster of persistent.cuh computes, and what a block holds.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
#include "matmul/params.h"
#include "matmul/stage.cuh"

namespace fdjax::matmul {

// Sizes of a block: a tile is kTokens by kN weight rows, of a gated GEMM as many gate
// as up rows. A stage of the ring holds 64 columns of K of both.
template <int kN, bool kGated>
struct PersistentShape {
  static constexpr int kTokens = kPersistentTokens;
  static constexpr int kConsumers = kTokens / 64;  // warpgroups, 64 tokens each
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kHalf = kN / 2;
  static constexpr int kColumns = kGated ? kHalf : kN;  // of y
  static constexpr int kHalfXBytes = 64 * kRowBytes;
  static constexpr int kXBytes = 2 * kHalfXBytes;
  static constexpr int kHalfBytes = kHalf * kRowBytes;
  static constexpr int kStageBytes = kXBytes + 2 * kHalfBytes;
  // A tile of y on its way out, and before that of the residual: boxes of 64 tokens by
  // 64 columns, those of a warpgroup side by side.
  static constexpr int kBoxBytes = 64 * kRowBytes;
  static constexpr int kBoxes = kColumns / 64;
  static constexpr int kOutBytes = kConsumers * kBoxes * kBoxBytes;
  static constexpr int kRoom = 227 * 1024 - 2048;  // less the barriers, and to align
  static constexpr int kStages = (kRoom - kOutBytes) / kStageBytes;
  static constexpr int kBytes = kStages * kStageBytes + kOutBytes + 1024;
  static_assert(kColumns % 64 == 0 && kStages >= 2);
};

// A block's tile, in tiles.
struct Tile {
  int tokens, columns;
};

// The order of the tiles. Two blocks of a cluster have tiles side by side: of other
// tokens, and share the weights, or of other weights, and share x. Tiles come down a
// band of `band` of them and then in the next columns, so that those that run at once
// have few tokens and few weights between them, which lie in L2. Clusters take them in
// turns.
struct TileOrder {
  int rows, columns;  // of clusters' tiles
  int band;           // rows that are walked down before the next column
  bool shares_weights;

  __host__ __device__ int count() const { return rows * columns; }

  __device__ Tile tile(int index, int rank) const {
    const int first = index / (band * columns) * band;
    const int height = min(band, rows - first), within = index - first * columns;
    const int row = first + within % height, column = within / height;
    return shares_weights ? Tile{row * kPair + rank, column}
                          : Tile{row, column * kPair + rank};
  }
};

}  // namespace fdjax::matmul

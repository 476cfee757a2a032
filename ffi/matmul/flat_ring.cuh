// What each block of the flat GEMM computes, and the ring of stages in shared memory
// that its warps share.
#pragma once

#include <cstdint>

#include "fdjax/divisor.cuh"
#include "fdjax/mbarrier.cuh"
#include "matmul/params.h"
#include "matmul/stage.cuh"

namespace fdjax::matmul {

inline constexpr int kTileRows = kMaxTileRows;  // of wgmma, of shorter tiles too
inline constexpr int kRegisters = 65536;        // of an SM

// Sizes of a block: a stage holds kTiles tiles of weight rows and kM tokens, kBoxes
// times 64 columns of both. Every (tile, box) has a warpgroup of its own, so that as
// many chains of dependent wgmmas run at once.
template <int kTilesOfABlock, int kM, int kBoxes>
struct Shape {
  static constexpr int kTiles = kTilesOfABlock;
  static constexpr int kGroups = kTiles * kBoxes;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 32;  // and the producer's warp
  // Registers leave room for so many blocks on an SM: of the largest, which a gated
  // GEMM takes, for the two whose rings fit (at 32 rows there was one:
  // layers of Llama-3-8B took 5.08 ms instead of 4.88); of others, with some 64 a
  // thread, or 96 with 64 tokens.
  static constexpr int kLeastBlocks =
      kGroups < 4 ? kRegisters / ((kM < 64 ? 64 : 96) * kThreads) : (kM < 64 ? 2 : 1);
  static constexpr int kColumns = kBoxes * kTileColumns;
  // Blocks start at different places along K, so that they do not all ask for the same
  // columns of rows that lie a power of two apart: 1 % faster. With much x, it costs
  // more than that to find x at many places of L2 at once.
  static constexpr bool kRotate = kM <= 16;
  static constexpr int kXBytes = kM * kRowBytes;  // of a box
  // Partial sums, [kBoxes][kM][kPitch] floats: a pitch of 4 modulo 32 spreads the
  // accumulators' layout over all banks.
  static constexpr int kPitch = kTiles * kTileRows + 4;
  static constexpr int kSumBytes = kBoxes * kM * kPitch * 4;

  __host__ __device__ static constexpr int stage_bytes(int tile_rows) {
    return kGroups * tile_rows * kRowBytes + kBoxes * kXBytes;
  }

  // The partial sums reuse the ring. wgmma always reads 64 rows, beyond those of a
  // shorter tile too (their results are ignored).
  __host__ __device__ static constexpr int bytes(int stages, int tile_rows) {
    const int ring =
        stages * stage_bytes(tile_rows) + (kTileRows - tile_rows) * kRowBytes;
    return (ring > kSumBytes ? ring : kSumBytes) + 1024;  // to align the ring
  }
};

// A FlatConfig as the kernel wants it: without divisions at its start and its end.
struct FlatKernelConfig {
  int stages, tile_rows, splits;
  int wide;                    // blocks; those after them have narrow tiles
  int begins[kMaxSplits + 1];  // of each split of K and the one after, in stages
  int shares[kMaxSplits + 1];  // of the results that each split's block finishes
  Divisor units;               // of 8 columns that a block has of each token
};

template <typename S>
FlatKernelConfig kernel_config(const Params& p, const FlatConfig& config, int wide) {
  const int depth = (p.k + S::kColumns - 1) / S::kColumns;
  const int tiles = p.gated ? S::kTiles / 2 : S::kTiles;
  const int units = tiles * config.tile_rows / 8;
  FlatKernelConfig kernel{.stages = config.stages,
                          .tile_rows = config.tile_rows,
                          .splits = config.splits,
                          .wide = wide,
                          .begins = {},
                          .shares = {},
                          .units = Divisor(units)};
  for (int rank = 0; rank <= config.splits; ++rank) {
    kernel.begins[rank] = depth * rank / config.splits;
    kernel.shares[rank] = units * p.m * rank / config.splits;
  }
  return kernel;
}

// Which part of the GEMM a block computes.
struct Work {
  int row;           // first weight row; of the gate, if gated
  int tile_rows;     // of this block's tiles
  int begin, count;  // stages along K
  int shift;         // where along them this block starts

  // The place along K of the block's i-th stage.
  __device__ int depth(int i) const {
    const int at = i + shift;
    return begin + (at < count ? at : at - count);
  }
};

// `tiles`: of a block, that follow one another.
template <typename S>
__device__ Work work_of(const FlatKernelConfig& config, int tiles) {
  constexpr uint32_t kGoldenRatio = 0x9E3779B9;  // of 2^32: spreads any number of tiles
  const int rank = blockIdx.x, tile = blockIdx.y;
  const int before = max(tile - config.wide, 0);  // narrow ones
  const int row = tiles * (tile * config.tile_rows - before * kTileRowMultiple);
  const int less = tile < config.wide ? 0 : kTileRowMultiple;
  const int begin = config.begins[rank], count = config.begins[rank + 1] - begin;
  const int shift = S::kRotate ? __umulhi(tile * kGoldenRatio, count) : 0;
  return {row, config.tile_rows - less, begin, count, shift};
}

struct Ring {
  unsigned char* data;
  uint64_t* full;   // a stage's bytes have arrived
  uint64_t* empty;  // the consumers are done with it
  int stages;
  int stage_bytes;
  int tile_rows;

  __device__ unsigned char* stage(int i) const { return data + i * stage_bytes; }
  __device__ int tile_bytes() const { return tile_rows * kRowBytes; }
};

}  // namespace fdjax::matmul

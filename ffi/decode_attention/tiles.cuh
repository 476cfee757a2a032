// A warp's tiles: where they lie in shared memory, and which of them are whose.
//
// A tile is 16 tokens of one key/value head; its keys are a half, and its values the
// next. Each warp has a ring of kHalves halves of its own and nobody to wait for: no
// barrier of the block stands in the loop. Many warps with a short ring keep as many
// bytes on their way as few with a long one, and hide each other's arithmetic too.
//
// 64 elements of a row, a line of 128 bytes in memory, are one in shared memory, the
// same columns of 16 rows one after the other, and the 16 byte chunks of row r trade
// places with those of index XOR r % 8: any 8 rows of a column of matrices lie in
// different banks. It is the layout in which TMA delivers. (Padding rows by
// 16 bytes instead cuts lines and sectors in two on their way: 2.6 times the requests,
// 1.5 times the sectors, 5 % of the speed at 256 x 1024 on an H200.)
#pragma once

#include <cstdint>

#include "attention_plan/plan.h"
#include "decode_attention/params.h"
#include "fdjax/divisor.cuh"

namespace fdjax::decode_attention {

using attention_plan::Item, attention_plan::kTileTokens;

inline constexpr int kLanes = 32;
inline constexpr int kRingAlignment = 1024;  // that of TMA's layout
inline constexpr int kLineElements = 64;
inline constexpr int kLineBytes = 2 * kLineElements;
inline constexpr int kColumnBytes = kTileTokens * kLineBytes;  // a line of each row

// `kColumns`: query heads of a group, padded to a multiple of 8.
template <typename Element, int kHeadDimension, int kQueryColumns>
struct Geometry {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kColumns = kQueryColumns;
  static constexpr int kBlocks = kColumns / 8;             // of 8 columns
  static constexpr int kChunks = kHeadDim / 8;             // of 16 bytes in a row
  static constexpr int kLines = kHeadDim / kLineElements;  // where they are whole
  static constexpr int kRowBytes = kHeadDim <= 64 ? 128 : (kHeadDim <= 128 ? 256 : 512);
  static constexpr int kHalfTileBytes = kTileTokens * kRowBytes;  // keys or values
  static constexpr int kQueryBytes = kColumns * kRowBytes;  // of one key/value head
  static constexpr int kNewestBytes = 2 * kRowBytes;        // of one: newest.cuh
  static constexpr int kHalves = kHeadDim <= 64 ? 4 : 2;    // of a warp's ring
  static constexpr int kRingBytes = kHalves * kHalfTileBytes;
  static constexpr int kPartialStride = kHeadDim + 4;  // floats; see combine.cuh
  // Of a block at most: 16 where 128 registers a thread are enough (no spills).
  static constexpr int kMaxWarps =
      (kHeadDim == 64 || kHeadDim == 128) && kHeadDim * kColumns <= 1024 ? 16 : 8;
};

// Where chunk `chunk` of query `row` lies, from the first of rows at a multiple of 8.
template <typename G>
__device__ uint32_t swizzled(int row, int chunk) {
  return row * G::kRowBytes + (chunk ^ row % 8) * 16;
}

// The same of a token's key or value, from the start of its half of a tile.
__device__ inline uint32_t at_tile(int row, int chunk) {
  return chunk / 8 * kColumnBytes + row * kLineBytes + (chunk % 8 ^ row % 8) * 16;
}

// From `address` of matrices in the first 32 bytes of a half tile's lines, to those of
// step `k`, 32 bytes further.
__device__ inline uint32_t at_step(uint32_t address, int k) {
  return (address ^ k % 4 * 32) + k / 4 * kColumnBytes;
}

// What a block serves: an item of the plan, and one split of its tokens.
struct Block {
  const Item& item;
  int split, splits;  // of its cluster
  int warps, warps_per_head;
  int head;          // of this warp
  int warp_of_head;  // this one

  __device__ Block(const Params& p, const Item& its)
      : item(its),
        split(blockIdx.x),
        splits(p.block.splits.value),
        warps(blockDim.x / kLanes) {
    const int heads_bits = 31 - __clz(item.heads), warp = threadIdx.x / kLanes;
    warps_per_head = warps >> heads_bits;
    head = warp >> (31 - __clz(warps_per_head));
    warp_of_head = warp & (warps_per_head - 1);
  }
  __device__ int row() const { return item.row; }
  __device__ int kv_head() const { return item.kv_head; }
  __device__ int heads() const { return item.heads; }
  __device__ bool is_whole() const { return item.pieces == 1; }
  // Whether the row's last tokens are this block's.
  __device__ bool is_last() const {
    return item.piece == item.pieces - 1 && split == splits - 1;
  }
  // Of the block's first query head in q and out, in heads.
  __device__ int64_t query_head(const Params& p) const {
    return (int64_t{item.row} * p.kv_heads + item.kv_head) * p.group;
  }
};

// The tokens that one warp attends to.
struct Work {
  int row;
  int kv_head;
  int begin, end;   // tokens that the query sees; it is the last of them
  int first, step;  // tiles: first, first + step, ...
  int tiles;        // how many

  __device__ int token(int tile) const { return (first + tile * step) * kTileTokens; }
  // The last tile of a row's tokens is the last of one warp's.
  __device__ bool has_newest(int tile) const {
    return tile == tiles - 1 && token(tile) + kTileTokens >= end;
  }
};

__device__ inline Work assign(const Params& p, const Block& block) {
  const Item& item = block.item;
  Work w;
  w.row = item.row;
  w.kv_head = item.kv_head + block.head;
  w.begin = item.begin;
  w.end = item.end;
  // Splits are runs of tiles; the warps of a head take turns within one, so that they
  // read neighbouring slots of a page at the same time.
  const int start = item.first, count = item.last - item.first;
  // Not always rounded down (count is below 2^21), but one run ends where the next one
  // begins, and the last one at the end.
  const int from = start + quotient(count * block.split, p.block.splits);
  const int to = start + quotient(count * (block.split + 1), p.block.splits);
  w.step = block.warps_per_head;
  w.first = from + block.warp_of_head;
  w.tiles = max(to - w.first + w.step - 1, 0) >> (31 - __clz(w.step));
  return w;
}

}  // namespace fdjax::decode_attention

// What a block works on: a tile of queries, one key/value head at a time.
//
// A tile is 128 rows of the GEMMs: as many neighbouring tokens of one sequence as
// fit, each with all query heads of one key/value head. Heads that share keys read them
// once (FlashInfer, section 3.2.1 fuses them the same way), and a tile of few tokens
// wastes less of the diagonal.
#pragma once

#include <cstdint>

#include "paged/slots.cuh"
#include "prefill_attention/params.h"

namespace fdjax::prefill_attention {

inline constexpr int kLanes = 32;

// What a kernel is compiled for.
enum class Use {
  kSynchronised,  // prompts, of which each row has its running maximum
  kUnified,       // prompts, by the asynchronous scheme with a unified maximum
  kPrefixes,  // shared prefixes: queries are gathered, often too few for both consumers
  kStates,    // as kSynchronised, along a tree, and what is left are states
};

// A tile, and one key/value head.
struct Work : Tile {
  int kv_head;
  int round = 0;  // which of its block's items it is
  // In a pair of blocks (pair.cuh): which of them get the keys that this one fetches, a
  // bit each; up to where both go through tiles of keys, which may be past the last.
  int takers = 0;
  int loop_end = 0;
};

// Item `index` of all tiles and key/value heads; of no tokens where there is none.
__device__ inline Work work_of(const Params& p, int index) {
  const int tile = index / p.attention.kv_heads;
  if (tile >= p.num_tiles) return {};
  return {p.tiles[tile], index % p.attention.kv_heads};
}

__device__ inline int query_at(const Params& p, int place) {
  return p.order == nullptr ? place : p.order[place];
}

// A row of the tile: which query and head. Rows past the last are no query's.
struct RowPlace {
  int token, head;

  __device__ RowPlace(const decode_attention::Params& p, int row)
      : token(row / p.group), head(row % p.group) {}

  // In q and out, in elements.
  __device__ int64_t offset(const decode_attention::Params& p, int kv_head,
                            int64_t query) const {
    return ((query * p.kv_heads + kv_head) * p.group + head) * p.head_dim;
  }
  // Of a tile whose queries are neighbours.
  __device__ int64_t offset(const decode_attention::Params& p, const Work& work) const {
    return offset(p, work.kv_head, int64_t{work.first} + token);
  }
};

// What is the same for all keys of a row; in shared memory, where registers are short.
struct Query {
  int position;
  float slope;  // of ALiBi, in units of log 2
  float sink;   // its score, in units of log 2; -inf: none
};

__device__ inline Query describe(const decode_attention::Params& p, const Work& work,
                                 int row) {
  using decode_attention::kLog2E;
  const RowPlace place(p, row);
  const int head = work.kv_head * p.group + place.head;
  return {.position = work.position + min(place.token, work.tokens - 1),
          .slope = p.slopes == nullptr ? 0.0f : kLog2E * p.slopes[head],
          .sink = p.sinks == nullptr || work.pieces == 0 ? -INFINITY
                                                         : kLog2E * p.sinks[head]};
}

using paged::kAbsent;

// In slots; kAbsent where nothing may be read: what is past the last query may be
// anything, and zero times NaN is NaN.
__device__ inline int slot_of(const decode_attention::Params& p, const Work& work,
                              int token) {
  if (token >= work.key_end) return kAbsent;
  return paged::slot_of</*kAnySize=*/true>(p, work.row, token);
}

}  // namespace fdjax::prefill_attention

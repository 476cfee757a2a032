// One block makes the plan: a warp for each candidate of how long a piece may be, and
// then all for the best of them.
//
// A candidate is judged by what its busiest cluster would have to do. Costs fall into
// buckets, so that a place in the order of all items is found by a search, and one warp
// needs no list. An item costs the tokens of its heads, and item_tokens for beginning
// and ending. Attention waits for this kernel, so it is short of divisions and of
// everything in 64 bits.
#pragma once

#include <climits>
#include <cstdint>

#include "attention_plan/params.h"
#include "fdjax/gpu.h"

namespace fdjax::attention_plan {

inline constexpr int kLanes = 32;
inline constexpr int kCandidates = 32;
inline constexpr int kThreads = kCandidates * kLanes;
inline constexpr int kBuckets = 4 * kLanes;
// Of a cluster: more counts as so much. An item's fits it (limits.h), two fit 32 bits,
// and a candidate without room is still worse.
inline constexpr int kMostCost = 1 << 30;
inline constexpr int kLeastTokens = 256;  // of an item, where there are more

// Of the tokens that a cluster would have if all had the same, in 1024ths: what an item
// may have. The first candidate cuts nothing, the last ones part all heads: more items,
// of more different costs.
__device__ constexpr int kShares[kCandidates] = {
    0,   1331, 1096, 1024, 922,  819, 768, 740, 717, 692, 680, 652, 625, 527, 512, 480,
    392, 361,  341,  300,  1096, 860, 780, 717, 684, 658, 632, 610, 525, 500, 488, 460};
inline constexpr int kTogether = 20;  // candidates whose items may have several heads

// Of a row, under one candidate.
struct Cut {
  int heads, pieces;
  int count;  // items
  int cost;   // of each
};

// What an item may have: tiles of all its heads, INT_MAX if nothing is cut, and heads.
struct Limit {
  int tiles, heads;
};

__device__ inline int tiles_of(const Params& p, int row) {
  const int end = max(min(p.lengths[row], p.room), 0);
  const int begin = max(end - p.window, 0);
  return (end + kTileTokens - 1) / kTileTokens - begin / kTileTokens;
}

__device__ inline Cut cut_row(const Params& p, uint32_t tiles, Limit limit) {
  const int kv_heads = p.shape.kv_heads;
  if (p.piece_tiles > 0) {
    const int least = static_cast<int>((tiles + kMaxRowPieces - 1) / kMaxRowPieces);
    limit.tiles = max(limit.tiles, least);
  }
  if (tiles > limit.tiles) {
    const uint32_t pieces = (tiles + limit.tiles - 1) / limit.tiles;
    const int most = (tiles + pieces - 1) / pieces;
    return {1, static_cast<int>(pieces), static_cast<int>(pieces * kv_heads),
            most * kTileTokens + p.item_tokens};
  }
  int heads = limit.heads, bits = 31 - __clz(heads);
  while (bits > 0 && tiles > limit.tiles >> bits) --bits;
  heads = 1 << bits;
  return {heads, 1, kv_heads >> bits,
          static_cast<int>(heads * tiles) * kTileTokens + p.item_tokens};
}

__device__ inline Limit limit_of(const Params& p, int64_t tiles, int candidate) {
  const Shape& s = p.shape;
  if (p.piece_tiles > 0) return {p.piece_tiles, s.heads};  // the candidates are one
  if (candidate == 0) return {INT_MAX, s.heads};
  const int64_t whole = tiles * s.kv_heads * kShares[candidate];
  const int64_t per = int64_t{s.slots} * 1024;
  const int share = static_cast<int>((whole + per - 1) / per);
  return {max(share, kLeastTokens / kTileTokens), candidate < kTogether ? s.heads : 1};
}

__device__ inline int sum_of_warp(int x) { return __reduce_add_sync(~0u, x); }
__device__ inline int max_of_warp(int x) { return __reduce_max_sync(~0u, x); }

// Costs from 0 to `most` in buckets, by a multiplication for each.
class Buckets {
 public:
  __device__ explicit Buckets(uint32_t most)
      : most_(max(most, kBuckets)),  // or the factor would not fit
        factor_(((uint64_t{kBuckets - 1} << 32) + most_ - 1) / most_) {}
  // `most` itself is the last one.
  __device__ int operator()(uint32_t cost) const { return __umulhi(cost, factor_); }
  // Of what falls into a bucket, at most.
  __device__ int highest(int bucket) const {
    constexpr int kLast = kBuckets - 1;
    const uint64_t above = uint64_t{most_} * static_cast<uint32_t>(bucket + 1) / kLast;
    return static_cast<int>(min(above, uint64_t{most_}));
  }

 private:
  uint32_t most_, factor_;
};

// What a candidate comes to.
struct Estimate {
  int busiest, items, pieces, most;
};

// Makes of counts by bucket how many items there are in each and above.
__device__ inline void sum_from_top(int* counts) {
  const int lane = threadIdx.x % kLanes;
  int4* const own = reinterpret_cast<int4*>(counts) + (kLanes - 1 - lane);
  int4 c = *own;
  c.z += c.w;
  c.y += c.z;
  c.x += c.y;
  int above = c.x;
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    const int more = __shfl_up_sync(~0u, above, d);
    if (lane >= d) above += more;
  }
  above -= c.x;
  *own = {c.x + above, c.y + above, c.z + above, c.w + above};
  __syncwarp();
}

// What the busiest of 32 clusters, which stand for all, would have to do. `ends`: as
// sum_from_top leaves them.
__device__ inline int busiest_of(const Shape& s, int items, const Buckets& buckets,
                                 const int* ends) {
  const int lane = threadIdx.x % kLanes;
  const int slot = lane * (s.slots - 1) / (kLanes - 1);
  int cost = 0;
  for (int round = 0, base = 0; base < items; ++round, base += s.slots) {
    const int place = base + (round % 2 == 0 ? slot : s.slots - 1 - slot);
    if (place >= items) continue;
    int bucket = 0;  // the largest with ends > place
#pragma unroll
    for (int step = kBuckets / 2; step > 0; step /= 2) {
      if (ends[bucket + step] > place) bucket += step;
    }
    cost = min(cost + buckets.highest(bucket), kMostCost);
  }
  return max_of_warp(cost);
}

// By a warp. `tiles`: of the rows; `ends`: room for a number a bucket.
__device__ inline Estimate judge(const Params& p, const int* tiles, const Limit& limit,
                                 int* ends) {
  const Shape& s = p.shape;
  const int lane = threadIdx.x % kLanes;
  Estimate e{INT_MAX, 0, 0, 0};
  reinterpret_cast<int4*>(ends)[lane] = {0, 0, 0, 0};
  for (int row = lane; row < s.rows; row += kLanes) {
    const Cut cut = cut_row(p, tiles[row], limit);
    e.most = max(e.most, cut.cost);
    e.items += cut.count;
    e.pieces += cut.pieces > 1 ? cut.count : 0;
  }
  e.most = max_of_warp(e.most);
  e.items = sum_of_warp(e.items);
  e.pieces = sum_of_warp(e.pieces);
  __syncwarp();
  if (e.items > s.max_items || e.pieces > s.max_pieces) return e;
  const Buckets buckets(e.most);
  for (int row = lane; row < s.rows; row += kLanes) {
    const Cut cut = cut_row(p, tiles[row], limit);
    atomicAdd(&ends[buckets(cut.cost)], cut.count);
  }
  __syncwarp();
  sum_from_top(ends);
  e.busiest = busiest_of(s, e.items, buckets, ends);
  return e;
}

// What others must know of a row to find their place.
struct RowCut {
  int key;     // its place among rows: by bucket, from the top, then by row
  int count;   // of its items
  int pieces;  // items that leave a record
};

// Where a row's items and records begin.
struct Place {
  int item, record;
};

struct Shared {
  Limit limits[kCandidates];
  int tiles[kMaxRows];
  RowCut rows[kMaxRows];
  Place places[kMaxRows];
  int ends[kCandidates][kBuckets];
  Estimate estimates[kCandidates];
};

// By a warp. The first of those that are within a 64th of the best: longer items begin
// and end less often.
__device__ inline int best_of(const Estimate* estimates) {
  const int own = estimates[threadIdx.x % kLanes].busiest;
  const int least = __reduce_min_sync(~0u, own);
  return __ffs(__ballot_sync(~0u, own <= least + least / 64)) - 1;
}

// By all threads: each row's place, `each` lanes for a row.
__device__ inline void place_rows(const Shape& s, Shared& shared) {
  int each = kLanes;
  while (each > 1 && each * s.rows > kThreads) each /= 2;
  const int lane = threadIdx.x % each, stride = kThreads / each;
  for (int first = 0; first < s.rows; first += stride) {
    const int row = first + threadIdx.x / each;
    const int own = row < s.rows ? shared.rows[row].key : 0;
    Place place{0, 0};
    for (int i = lane; i < s.rows && row < s.rows; i += each) {
      const RowCut& other = shared.rows[i];
      place.item += other.key < own ? other.count : 0;
      place.record += i < row ? other.pieces : 0;
    }
    for (int d = each / 2; d > 0; d /= 2) {
      place.item += __shfl_xor_sync(~0u, place.item, d);
      place.record += __shfl_xor_sync(~0u, place.record, d);
    }
    if (row < s.rows && lane == 0) shared.places[row] = place;
  }
}

// A warp writes a row's items, heads first: blocks that run at the same time read
// neighbouring heads of the same slots.
__device__ inline void write_items(const Params& p, int row, const Cut& cut,
                                   const Place& place, Item* items) {
  const int end = max(min(p.lengths[row], p.room), 0);
  const int begin = max(end - p.window, 0), start = begin / kTileTokens;
  const uint32_t tiles = (end + kTileTokens - 1) / kTileTokens - start;
  const int per_piece = p.shape.kv_heads >> (31 - __clz(cut.heads));
  for (int i = threadIdx.x % kLanes; i < cut.count; i += kLanes) {
    const uint32_t piece = i / per_piece, head = (i - piece * per_piece) * cut.heads;
    const uint32_t first = tiles * piece / cut.pieces;
    const uint32_t last = tiles * (piece + 1) / cut.pieces;
    items[place.item + i] = {.row = row,
                             .kv_head = static_cast<uint16_t>(head),
                             .heads = static_cast<uint16_t>(cut.heads),
                             .piece = static_cast<uint16_t>(piece),
                             .pieces = static_cast<uint16_t>(cut.pieces),
                             .first = start + static_cast<int>(first),
                             .last = start + static_cast<int>(last),
                             .begin = begin,
                             .end = end,
                             .record = place.record};
  }
}

__device__ inline void write_header(const Params& p, const Estimate& e,
                                    const Limit& limit, int chosen) {
  p.plan[kItems] = e.items;
  p.plan[kPieces] = e.pieces;
  p.plan[kChunkTokens] = limit.tiles == INT_MAX ? 0 : limit.tiles * kTileTokens;
  p.plan[kCandidate] = chosen;
  for (int i = kCandidate + 1; i < kHeader; ++i) p.plan[i] = 0;
}

// Grid: one block.
__global__ void __launch_bounds__(kThreads, 1)
    plan_kernel(FDJAX_GRID_CONSTANT const Params p) {
  extern __shared__ __align__(16) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  __shared__ int64_t all_tiles[kCandidates];
  const Shape& s = p.shape;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  int tiles = 0;  // at most kMaxRows / kThreads rows a thread: no overflow
  for (int row = threadIdx.x; row < s.rows; row += kThreads) {
    tiles += shared.tiles[row] = tiles_of(p, row);
  }
  tiles = sum_of_warp(tiles);
  if (lane == 0) all_tiles[warp] = tiles;
  const int first = static_cast<int>(items_at(s.rows, s.kv_heads));
  for (int i = kHeader + threadIdx.x; i < first; i += kThreads) p.plan[i] = 0;
  __syncthreads();
  int64_t total = 0;
  for (int i = 0; i < kCandidates; ++i) total += all_tiles[i];
  const Limit own = limit_of(p, total, warp);
  const Estimate mine = judge(p, shared.tiles, own, shared.ends[warp]);
  if (lane == 0) {
    shared.limits[warp] = own;
    shared.estimates[warp] = mine;
  }
  __syncthreads();
  const int chosen = best_of(shared.estimates);
  const Limit limit = shared.limits[chosen];
  if (threadIdx.x == 0) write_header(p, shared.estimates[chosen], limit, chosen);
  const Buckets buckets(shared.estimates[chosen].most);
  for (int row = threadIdx.x; row < s.rows; row += kThreads) {
    const Cut cut = cut_row(p, shared.tiles[row], limit);
    shared.rows[row] = {(kBuckets - 1 - buckets(cut.cost)) * kMaxRows + row, cut.count,
                        cut.pieces > 1 ? cut.count : 0};
  }
  __syncthreads();
  place_rows(s, shared);
  __syncthreads();
  Item* const items = reinterpret_cast<Item*>(p.plan + first);
  for (int row = warp; row < s.rows; row += kCandidates) {
    write_items(p, row, cut_row(p, shared.tiles[row], limit), shared.places[row],
                items);
  }
}

}  // namespace fdjax::attention_plan

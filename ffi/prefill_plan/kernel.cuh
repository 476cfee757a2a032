// The work of rows with any number of queries: tiles of these, where they are few in
// pieces of their keys, those of the most keys first (FlashInfer, section 3.3).
//
// One block makes the list, before the layers of a step, which all read it. What XLA
// would make of the definition (fdjax/kernels/prefill_plan/tiles.py) is a dozen
// kernels, and seconds of compiling for the shapes of an engine.
#pragma once

#include <climits>
#include <cstdint>

#include "prefill_plan/params.h"

namespace fdjax::prefill_plan {

inline constexpr int kLanes = 32;
inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / kLanes;
static_assert(kMaxPieces <= kThreads);
// Classes of the order: two for each factor of two in the number of keys.
inline constexpr int kClasses = 64;
inline constexpr int kCandidates = 1 + kMaxShare;

struct Shared {
  int tile_ends[kMaxRows];   // tiles up to each row
  int piece_ends[kThreads];  // pieces up to each tile, and the records that they leave
  int record_ends[kThreads];
  int sizes[kThreads];  // tiles of keys that a tile sees
  int limits[kCandidates];
  float costs[kCandidates];
  int sums[kWarps];
  int places[kClasses];  // where the next item of a class goes
  int of_warp[kWarps][kClasses];
};

// Of `count` numbers in ascending order, how many are at most `value`.
__device__ inline int num_up_to(const int* ends, int count, int value) {
  int low = 0;
  while (count > 0) {
    const int half = count / 2;
    if (ends[low + half] <= value) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

__device__ inline int divided_up(int x, int by) { return (x + by - 1) / by; }

__device__ inline int sum_up_to_lane(int x) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    const int more = __shfl_up_sync(~0u, x, d);
    if (lane >= d) x += more;
  }
  return x;
}

// By all threads: the sum of x of the threads up to this one.
__device__ inline int sum_up_to_thread(Shared& shared, int x) {
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  x = sum_up_to_lane(x);
  __syncthreads();  // the sums of the last call have been read
  if (lane == kLanes - 1) shared.sums[warp] = x;
  __syncthreads();
  const int before = lane < warp ? shared.sums[lane] : 0;
  return x + __reduce_add_sync(~0u, before);
}

__device__ inline int queries_of(const Params& p, int row) {
  const int first = p.firsts[row], start = p.starts[row];
  const int stop = min(p.lengths[row], p.max_tokens);
  if (first < 0 || stop <= start) return 0;  // attention trusts the tiles
  // What is between two numbers of 32 bits has no sign.
  const uint32_t count = static_cast<uint32_t>(stop) - static_cast<uint32_t>(start);
  return min(count, static_cast<uint32_t>(max(p.queries - first, 0)));
}

// Rows that overlap might have more than there is room for, or than 32 bits.
__device__ inline void count_tiles(const Params& p, Shared& shared) {
  int before = 0;
  for (int first = 0; first < p.rows; first += kThreads) {
    const int row = first + threadIdx.x;
    const int own = row < p.rows ? divided_up(queries_of(p, row), p.tile_tokens) : 0;
    const int sum = before + sum_up_to_thread(shared, min(own, p.tiles));
    if (row < p.rows) shared.tile_ends[row] = min(sum, p.tiles);
    __syncthreads();
    before = shared.tile_ends[min(first + kThreads, p.rows) - 1];
  }
}

// All keys of a tile of queries, of which the last of a row come first: they see most.
__device__ inline Tile tile_of(const Params& p, const Shared& shared, int index) {
  const int row = num_up_to(shared.tile_ends, p.rows, index);
  const int offset = (shared.tile_ends[row] - 1 - index) * p.tile_tokens;
  const int position = p.starts[row] + offset;
  const int tokens = min(queries_of(p, row) - offset, p.tile_tokens);
  // Before position 0 a window that is none would take this below INT_MIN.
  const int begin = max(max(position, 0) - p.window + 1, 0);
  return {.row = row,
          .first = p.firsts[row] + offset,
          .position = position,
          .tokens = tokens,
          .key_begin = begin,
          .key_end = position + tokens,
          .record = -1,
          .pieces = 1};
}

__device__ inline int key_tiles_of(const Tile& tile) {
  return max(divided_up(tile.key_end, kKeyTile) - tile.key_begin / kKeyTile, 0);
}

// By a warp: what all blocks take, if no piece has more tiles of keys than a block has
// where each gets `candidate` pieces; 0: nothing is cut. Infinite: its records have no
// room.
__device__ inline void judge(const Params& p, Shared& shared, int candidate) {
  const int lane = threadIdx.x % kLanes;
  int all = 0, most = 0;
  for (int i = lane; i < p.tiles; i += kLanes) {
    all += shared.sizes[i];
    most = max(most, shared.sizes[i]);
  }
  int limit = __reduce_max_sync(~0u, most);
  all = __reduce_add_sync(~0u, all);
  if (candidate > 0) {
    const float share = __fdiv_rn(static_cast<float>(all), p.blocks);
    limit = static_cast<int>(ceilf(__fdiv_rn(share, static_cast<float>(candidate))));
  }
  limit = max(limit, 1);
  int pieces = 0, records = 0, longest = 0;
  for (int i = lane; i < p.tiles; i += kLanes) {
    const int size = shared.sizes[i], cut = divided_up(size, limit);
    pieces += cut;
    records += cut > 1 ? cut : 0;
    longest = max(longest, divided_up(size, max(cut, 1)));
  }
  pieces = __reduce_add_sync(~0u, pieces);
  records = __reduce_add_sync(~0u, records);
  longest = __reduce_max_sync(~0u, longest);
  if (lane != 0) return;
  const float waves = ceilf(__fdiv_rn(static_cast<float>(pieces), p.blocks));
  shared.limits[candidate] = limit;
  shared.costs[candidate] = records <= p.records
                                ? waves * static_cast<float>(longest + kPieceCost)
                                : INFINITY;
}

// By all threads: how many pieces there are, of tiles whose keys may be cut.
__device__ inline int cut_tiles(const Params& p, Shared& shared, int num_tiles) {
  const int tile = threadIdx.x, warp = threadIdx.x / kLanes;
  const bool exists = tile < num_tiles;
  shared.sizes[tile] = exists ? key_tiles_of(tile_of(p, shared, tile)) : 0;
  __syncthreads();
  if (warp < kCandidates) judge(p, shared, warp);
  __syncthreads();
  int best = 0;
  for (int i = 1; i < kCandidates; ++i) {
    if (shared.costs[i] < shared.costs[best]) best = i;
  }
  const int pieces = divided_up(shared.sizes[tile], shared.limits[best]);
  shared.piece_ends[tile] = sum_up_to_thread(shared, pieces);
  shared.record_ends[tile] = sum_up_to_thread(shared, pieces > 1 ? pieces : 0);
  __syncthreads();
  return shared.piece_ends[kThreads - 1];
}

// A piece of a tile's keys, where these may be cut.
__device__ inline Tile piece_of(const Params& p, const Shared& shared, int index) {
  const int at = num_up_to(shared.piece_ends, kThreads, index);
  Tile tile = tile_of(p, shared, at);
  const int before = at == 0 ? 0 : shared.piece_ends[at - 1];
  const int piece = index - before, pieces = shared.piece_ends[at] - before;
  const int size = shared.sizes[at], begin = tile.key_begin / kKeyTile;
  const int first = begin + size * piece / pieces;
  const int last = begin + size * (piece + 1) / pieces;
  tile.key_begin = max(first * kKeyTile, tile.key_begin);
  tile.key_end = min(last * kKeyTile, tile.key_end);
  tile.record = pieces > 1 ? shared.record_ends[at] - pieces + piece : -1;
  tile.pieces = piece == 0 ? pieces : 0;
  return tile;
}

// The more keys, the lower: twice the exponent of their number, and one more where its
// mantissa is the root of two or more, so that classes are that factor apart.
__device__ inline int class_of(const Tile& tile) {
  constexpr uint32_t kRootOfTwo = 0x3504f3;  // its mantissa
  const int keys = max(tile.key_end - tile.key_begin, 1);
  const uint32_t bits = __float_as_uint(static_cast<float>(keys));
  const int size = 2 * (static_cast<int>(bits >> 23) - 127) +
                   ((bits & 0x7fffff) > kRootOfTwo ? 1 : 0);
  return kClasses - 1 - size;
}

// By all threads: writes those of `count` items that have keys, in the order of their
// classes, and those of a class as they come; make(i) is one of them. Returns how many.
template <typename Make>
__device__ int in_order(const Params& p, Shared& shared, int count, Make&& make) {
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  if (threadIdx.x < kClasses) shared.places[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Tile item = make(i);
    if (key_tiles_of(item) > 0) atomicAdd(&shared.places[class_of(item)], 1);
  }
  __syncthreads();
  if (warp == 0) {
    const int low = shared.places[2 * lane], high = shared.places[2 * lane + 1];
    const int before = sum_up_to_lane(low + high) - low - high;
    shared.places[2 * lane] = before;
    shared.places[2 * lane + 1] = before + low;
  }
  for (int first = 0; first < count; first += kThreads) {
    const int i = first + threadIdx.x;
    for (int c = lane; c < kClasses; c += kLanes) shared.of_warp[warp][c] = 0;
    __syncthreads();
    Tile item{};
    int own = kClasses;  // of who has none
    if (i < count) {
      item = make(i);
      if (key_tiles_of(item) > 0) own = class_of(item);
    }
    const unsigned alike = __match_any_sync(~0u, own);
    const int rank = __popc(alike & ((1u << lane) - 1));
    if (rank == 0 && own < kClasses) shared.of_warp[warp][own] = __popc(alike);
    __syncthreads();
    if (threadIdx.x < kClasses) {
      int place = shared.places[threadIdx.x];
      for (int w = 0; w < kWarps; ++w) {
        const int more = shared.of_warp[w][threadIdx.x];
        shared.of_warp[w][threadIdx.x] = place;
        place += more;
      }
      shared.places[threadIdx.x] = place;
    }
    __syncthreads();
    if (own < kClasses) p.work[shared.of_warp[warp][own] + rank] = item;
    __syncthreads();
  }
  return shared.places[kClasses - 1];  // where its items end, and so all
}

// Grid: one block.
__global__ void __launch_bounds__(kThreads, 1)
    plan_kernel(FDJAX_GRID_CONSTANT const Params p) {
  extern __shared__ __align__(16) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  count_tiles(p, shared);
  const int num_tiles = shared.tile_ends[p.rows - 1];
  int count = num_tiles;
  if (p.records > 0) {
    count = cut_tiles(p, shared, num_tiles);
    count = in_order(p, shared, count, [&](int i) { return piece_of(p, shared, i); });
  } else {
    count = in_order(p, shared, count, [&](int i) { return tile_of(p, shared, i); });
  }
  for (int i = count + threadIdx.x; i < p.tiles + p.records; i += kThreads) {
    p.work[i] = {.row = 0,
                 .first = 0,
                 .position = 0,
                 .tokens = 0,
                 .key_begin = 0,
                 .key_end = 0,
                 .record = -1,
                 .pieces = 0};
  }
}

}  // namespace fdjax::prefill_plan

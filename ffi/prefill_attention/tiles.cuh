// What a block works on: a tile of queries, and the keys and values they see, on their
// way from scattered pages through shared memory.
//
// A tile is 128 rows of the products: as many neighbouring tokens of one sequence as
// fit, each with all query heads of one key/value head. Heads that share keys read them
// once (FlashInfer, section 3.2.1 fuses them the same way), and a tile of few tokens
// wastes less of the diagonal. Keys and values come 64 (or 32) tokens at a time into
// two buffers: one is read while the other fills.
//
// Rows of shared memory lie as those of decode_attention: 16 byte chunks trade places
// with those of index XOR row % 8.
#pragma once

#include <cstdint>

#include "fdjax/mbarrier.cuh"
#include "fdjax/mma.cuh"
#include "prefill_attention/params.h"

namespace fdjax::prefill_attention {

inline constexpr int kLanes = 32;
inline constexpr int kTileRows = 128;

// `kHeadDimension`: the largest size of a head; smaller ones are padded with zeros.
template <typename Element, int kHeadDimension>
struct Geometry {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimension;
  // Each key that a warp reads from shared memory serves all of its rows; with 16 rows
  // those reads, and not the products, would be the bound. Heads of 256 leave registers
  // for no more.
  static constexpr int kWarpRows = kHeadDim <= 128 ? 32 : 16;
  static constexpr int kWarps = kTileRows / kWarpRows;
  static constexpr int kThreads = kWarps * kLanes;
  static constexpr int kTileKeys = kHeadDim <= 128 ? 64 : 32;
  static constexpr int kRowTiles = kWarpRows / 16;  // of a warp's products
  static constexpr int kKeyTiles = kTileKeys / 8;
  static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes in a row
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kQueryBytes = kTileRows * kRowBytes;
  static constexpr int kHalfBytes = kTileKeys * kRowBytes;  // keys or values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;
};

// Where chunk `chunk` of row `row` lies, from the first of rows at a multiple of 8.
template <typename G>
__device__ uint32_t swizzled(int row, int chunk) {
  return row * G::kRowBytes + (chunk ^ row % 8) * 16;
}

struct Tile {
  int row;             // of the batch
  int tokens;          // how many of the sequence's new tokens
  int first;           // of them, in q and out
  int position;        // of that
  int key_begin, end;  // keys that some query sees
};

// How many tokens of a sequence a tile has.
__device__ inline int tokens_of_tile(const decode_attention::Params& p) {
  return kTileRows / p.group;
}

// The new tokens of a row.
__device__ inline int count_of(const Params& p, int row) {
  const int room = p.attention.table_width * static_cast<int>(p.attention.page_size);
  const int count = min(p.attention.lengths[row], room) - p.starts[row];
  return max(min(count, p.queries - p.firsts[row]), 0);
}

__device__ inline int inclusive_sum(int x) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int other = __shfl_up_sync(~0u, x, distance);
    if (lane >= distance) x += other;
  }
  return x;
}

// Tile `index` of all rows, those of a row from its last: they see the most keys, and
// what takes long should begin early. False: there are fewer.
__device__ inline bool locate(const Params& p, int index, Tile* tile) {
  const int most = tokens_of_tile(p.attention), lane = threadIdx.x % kLanes;
  for (int base = 0; base < p.attention.rows; base += kLanes) {
    const int count = base + lane < p.attention.rows ? count_of(p, base + lane) : 0;
    const int tiles = (count + most - 1) / most, sum = inclusive_sum(tiles);
    const int found = __ffs(__ballot_sync(~0u, sum > index)) - 1;
    if (found < 0) {
      index -= __shfl_sync(~0u, sum, kLanes - 1);
      continue;
    }
    const int from_last = index - __shfl_sync(~0u, sum - tiles, found);
    const int offset = (__shfl_sync(~0u, tiles, found) - 1 - from_last) * most;
    tile->row = base + found;
    tile->tokens = min(__shfl_sync(~0u, count, found) - offset, most);
    tile->first = p.firsts[tile->row] + offset;
    tile->position = p.starts[tile->row] + offset;
    tile->key_begin = max(tile->position - p.attention.window + 1, 0);
    tile->end = tile->position + tile->tokens;
    return true;
  }
  return false;
}

// A row of the tile: which query and head. Rows past the last are no query's.
struct RowPlace {
  int token, head;

  __device__ RowPlace(const decode_attention::Params& p, int row)
      : token(row / p.group), head(row % p.group) {}

  // In q and out, in elements.
  __device__ int64_t offset(const decode_attention::Params& p, const Tile& tile,
                            int kv_head) const {
    const int64_t query = tile.first + token;
    return ((query * p.kv_heads + kv_head) * p.group + head) * p.head_dim;
  }
};

// Chunks of a head, and which of a warp's lanes copies what: neighbours the same row.
template <typename G>
struct Lanes {
  static constexpr int kOfRow = G::kChunks < kLanes ? G::kChunks : kLanes;
  static constexpr int kRows = kLanes / kOfRow;  // at a time
  __device__ static int row() { return threadIdx.x % kLanes / kOfRow; }
  __device__ static int chunk() { return threadIdx.x % kOfRow; }
};

template <typename G>
__device__ void load_queries(const decode_attention::Params& p, const Tile& tile,
                             int kv_head, uint32_t queries) {
  const typename G::T* q = static_cast<const typename G::T*>(p.q);
  const int chunk = Lanes<G>::chunk();
  const int first = threadIdx.x / kLanes * G::kWarpRows + Lanes<G>::row();
#pragma unroll 4
  for (int i = 0; i < G::kWarpRows; i += Lanes<G>::kRows) {
    const RowPlace place(p, first + i);
    const bool present = place.token < tile.tokens && chunk < p.head_dim / 8;
    const int64_t offset = present ? place.offset(p, tile, kv_head) + chunk * 8 : 0;
    copy_async(queries + swizzled<G>(first + i, chunk), q + offset, present);
  }
}

inline constexpr int kAbsent = -1;

// Fetches the keys and values of a tile's queries, in order of position.
template <typename G>
class Loader {
 public:
  __device__ Loader(const decode_attention::Params& p, const Tile& tile, int kv_head)
      : p_(p),
        tile_(tile),
        keys_(static_cast<const char*>(p.kv) + int64_t{kv_head} * p.head_dim * 2),
        next_(tile.key_begin / G::kTileKeys) {
    slot_ = locate(next_);
  }

  // Starts the copies of the next keys and values, and looks up where those after them
  // lie.
  __device__ void fetch(uint32_t stage) {
    const int chunk = Lanes<G>::chunk();
    const int first = threadIdx.x / kLanes * kWarpKeys;
    const int64_t to_values = p_.page_size * p_.slot_bytes;
    const int slot = slot_;
    slot_ = locate(++next_);
#pragma unroll
    for (int i = 0; i < kWarpKeys; i += Lanes<G>::kRows) {
      const int row = i + Lanes<G>::row();
      const int at = __shfl_sync(~0u, slot, row);
      const bool present = at != kAbsent && chunk < p_.head_dim / 8;
      const char* source = keys_ + (present ? at * p_.slot_bytes + chunk * 16 : 0);
      const uint32_t target = stage + swizzled<G>(first + row, chunk);
      copy_async(target, source, present);
      copy_async(target + G::kHalfBytes, source + (present ? to_values : 0), present);
    }
  }

 private:
  static constexpr int kWarpKeys = G::kTileKeys / G::kWarps;  // that a warp copies

  // Where this lane's token lies, in slots; kAbsent where nothing may be read: what is
  // past the last query may be anything, and zero times NaN is NaN.
  __device__ int locate(int index) const {
    const int lane = threadIdx.x % kLanes;
    const int token =
        index * G::kTileKeys + threadIdx.x / kLanes * kWarpKeys + lane % kWarpKeys;
    if (token >= tile_.end) return kAbsent;
    const uint32_t index_of_page = __umulhi(token, p_.page_reciprocal);
    const uint32_t page =
        __ldg(p_.page_table + int64_t{tile_.row} * p_.table_width + index_of_page);
    if (page >= p_.num_pages) return kAbsent;
    return page * p_.slots_per_page + (token - index_of_page * p_.page_size);
  }

  const decode_attention::Params& p_;
  const Tile& tile_;
  const char* keys_;
  int next_;  // tile of keys to fetch
  int slot_;  // of this lane's token in it
};

}  // namespace fdjax::prefill_attention

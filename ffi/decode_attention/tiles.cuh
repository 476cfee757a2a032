// The way of keys and values: from scattered pages through shared memory.
//
// A tile is 16 tokens of one key/value head. Each warp has a ring of kStages tiles of
// its own and nobody to wait for: no barrier of the block stands in the loop. Keys and
// values of a tile are copied apart: a tile's keys make room for new ones while its
// values are still on their way. Many warps with a short ring keep as many bytes on
// their way as few with a long one, and hide each other's arithmetic too.
//
// Rows lie at a power of two, and the 16 byte chunks of row r trade places with those
// of index XOR r % 8: any 8 rows of a column of matrices lie in different banks, and a
// line of 128 bytes in memory is one in shared memory. (Padding rows by 16 bytes does
// the first, but cuts lines and sectors in two on their way: 2.6 times the
// requests, 1.5 times the sectors, 5 % of the speed at 256 x 1024 on an H200.)
#pragma once

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/ptx.cuh"

namespace fdjax::decode_attention {

inline constexpr int kLanes = 32;
inline constexpr int kTileTokens = 16;

// `kColumns`: query heads of a group, padded to a multiple of 8.
template <typename Element, int kHeadDimension, int kQueryColumns>
struct Geometry {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kColumns = kQueryColumns;
  static constexpr int kBlocks = kColumns / 8;  // of 8 columns
  static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes in a row
  static constexpr int kRowBytes = kHeadDim <= 64 ? 128 : (kHeadDim <= 128 ? 256 : 512);
  static constexpr int kHalfTileBytes = kTileTokens * kRowBytes;  // keys or values
  static constexpr int kTileBytes = 2 * kHalfTileBytes;
  static constexpr int kQueryBytes = kColumns * kRowBytes;  // of one key/value head
  static constexpr int kNewestBytes = 2 * kRowBytes;        // of one: newest.cuh
  static constexpr int kStages = kHeadDim <= 64 ? 2 : 1;
  static constexpr int kRingBytes = kStages * kTileBytes;  // of a warp
  static constexpr int kPartialStride = kHeadDim + 4;      // floats; see combine.cuh
  // Of a block at most: 16 where 128 registers a thread are enough (no spills).
  static constexpr int kMaxWarps =
      (kHeadDim == 64 || kHeadDim == 128) && kHeadDim * kColumns <= 1024 ? 16 : 8;
};

// Where chunk `chunk` of row `row` lies, from the first of rows at a multiple of 8.
template <typename G>
__device__ uint32_t swizzled(int row, int chunk) {
  return row * G::kRowBytes + (chunk ^ row % 8) * 16;
}

// What a block serves: heads of one row, and one split of its tokens.
struct Block {
  int row;
  int kv_head, heads;  // the first, and how many
  int split, splits;   // of its cluster
  int warps, warps_per_head;

  __device__ explicit Block(const Params& p)
      : row(blockIdx.z >> p.part_bits),
        heads(p.kv_heads / static_cast<int>(gridDim.y)),
        split(blockIdx.x),
        splits(gridDim.x),
        warps(blockDim.x / kLanes) {
    kv_head = blockIdx.y * heads;
    warps_per_head = warps / heads;
  }
  // Clusters that share the row's tokens, and which of them this block's is. (Computed
  // anew where needed: the kernel has no register to spare.)
  __device__ static int parts(const Params& p) { return 1 << p.part_bits; }
  __device__ static int part(const Params& p) { return blockIdx.z & (parts(p) - 1); }
  // Of the runs of tokens that the blocks of all parts have.
  __device__ int run(const Params& p) const { return part(p) * splits + split; }
  __device__ int runs(const Params& p) const { return parts(p) * splits; }
  // Of the block's first query head in q and out, in heads.
  __device__ int64_t query_head(const Params& p) const {
    return (int64_t{row} * p.kv_heads + kv_head) * p.group;
  }
};

// The tokens that one warp attends to.
struct Work {
  int row;
  int kv_head;
  int begin, end;   // tokens that the query sees; it is the last of them
  int first, step;  // tiles: first, first + step, ...
  int tiles;        // how many
};

__device__ inline Work assign(const Params& p, const Block& block) {
  const int warp = threadIdx.x / kLanes;
  Work w;
  w.row = block.row;
  w.kv_head = block.kv_head + warp / block.warps_per_head;
  const int room = p.table_width * static_cast<int>(p.page_size);
  w.end = max(min(p.lengths[w.row], room), 0);
  w.begin = max(w.end - p.window, 0);
  // Splits are runs of tiles; the warps of a head take turns within one, so that they
  // read neighbouring slots of a page at the same time.
  const int start = w.begin / kTileTokens;
  const int64_t count = (w.end + kTileTokens - 1) / kTileTokens - start;
  const int run = block.run(p), runs = block.runs(p);
  const int from = start + static_cast<int>(count * run / runs);
  const int to = start + static_cast<int>(count * (run + 1) / runs);
  w.step = block.warps_per_head;
  w.first = from + warp % block.warps_per_head;
  w.tiles = max(to - w.first + w.step - 1, 0) / w.step;
  return w;
}

inline constexpr int kAbsent = -1;

// Fetches this warp's tiles in order into its ring: keys, values, keys, values, ...
template <typename G>
class Loader {
 public:
  // Groups of copies that may be on their way when the oldest half tile is waited for.
  static constexpr int kPending = 2 * G::kStages - 1;

  __device__ Loader(const Params& p, const Work& work, uint32_t ring)
      : p_(p), work_(work), ring_(ring) {
    const char* kv = static_cast<const char*>(p.kv);
    keys_ = kv + work.kv_head * G::kHeadDim * sizeof(typename G::T);
  }

  __device__ uint32_t stage(int index) const { return ring_ + index * G::kTileBytes; }

  // Fills the ring with the first tiles.
  __device__ void start() {
    next_ = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) slots_[i] = locate(i);
#pragma unroll
    for (int stage = 0; stage < G::kStages; ++stage) {
      fetch_keys(stage);
      fetch_values(stage);
    }
  }

  // Puts a key and a value, chunks of 16 bytes, over those of row `row` in `stage`.
  // Each lane over what it has copied itself, which must have arrived.
  __device__ void replace(int stage, int row, const char* key) const {
    const int lane = threadIdx.x % kLanes;
    const int chunk = (lane - row * G::kChunks) & (kLanes - 1);  // as in `copy`
    if (chunk >= G::kChunks) return;
    const uint32_t target = this->stage(stage) + swizzled<G>(row, chunk);
    const char* source = key + chunk * 16;
    store_shared(target, *reinterpret_cast<const uint4*>(source));
    store_shared(target + G::kHalfTileBytes,
                 *reinterpret_cast<const uint4*>(source + G::kRowBytes));
  }

  // Starts the copies of the next tile's keys into `stage`.
  __device__ void fetch_keys(int stage) { copy(this->stage(stage), keys_); }

  // The same of its values; the tile after it is the next one.
  __device__ void fetch_values(int stage) {
    const int64_t to_values = p_.page_size * p_.slot_bytes;
    copy(this->stage(stage) + G::kHalfTileBytes, keys_ + to_values);
    // Loads arrive in order: a page id asked for now comes after these copies. So it is
    // one that is needed when they have been consumed, a whole ring ahead. (One tile
    // ahead made every fetch wait for the copies before it: 5 % at 8 x 32768.)
#pragma unroll
    for (int i = 1; i < kAhead; ++i) slots_[i - 1] = slots_[i];
    slots_[kAhead - 1] = locate(++next_ + kAhead - 1);
  }

 private:
  // Where this lane's token (lane % 16 of a tile) lies, in slots; kAbsent outside of
  // what the query sees, where nothing may be read: neither the page table's padding
  // nor a slot that may hold anything.
  __device__ int locate(int tile) const {
    const int lane = threadIdx.x % kLanes;
    const int token =
        (work_.first + tile * work_.step) * kTileTokens + lane % kTileTokens;
    if (tile >= work_.tiles || token < work_.begin || token >= work_.end) {
      return kAbsent;
    }
    const uint32_t index = __umulhi(token, p_.page_reciprocal);  // token / page_size
    const uint32_t page =
        __ldg(p_.page_table + int64_t{work_.row} * p_.table_width + index);
    if (page >= p_.num_pages) return kAbsent;
    return page * p_.slots_per_page + (token - index * p_.page_size);
  }

  // Half a tile, from `source` of slot 0. Without a next tile an empty group keeps the
  // count of groups.
  __device__ void copy(uint32_t target, const char* source) const {
    if (next_ < work_.tiles) {
      const int lane = threadIdx.x % kLanes;
#pragma unroll
      for (int i = 0; i < G::kChunks / 2; ++i) {
        const int index = lane + i * kLanes;
        const int row = index / G::kChunks, chunk = index % G::kChunks;
        const int slot = __shfl_sync(~0u, slots_[0], row);
        const bool present = slot != kAbsent;
        const int64_t offset = (present ? slot : 0) * p_.slot_bytes + chunk * 16;
        copy_async(target + swizzled<G>(row, chunk), source + offset, present);
      }
    }
    commit_copies();
  }

  static constexpr int kAhead = G::kStages + 2;
  const Params& p_;
  const Work& work_;
  const char* keys_;
  uint32_t ring_;
  int next_;           // tile to fetch
  int slots_[kAhead];  // of that and the following ones: of this lane's token
};

}  // namespace fdjax::decode_attention

// The way of keys and values: from scattered pages through shared memory.
//
// A tile is 16 tokens of one key/value head, keys and values. Each warp has a ring of
// kStages tiles of its own and nobody to wait for: no barrier of the block stands in the
// loop. Rows are padded by 16 bytes, which makes their distance an odd multiple of 16:
// any 8 rows of a column of matrices lie in different banks.
#pragma once

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/ptx.cuh"

namespace fdjax::decode_attention {

inline constexpr int kLanes = 32;
inline constexpr int kWarps = 4;
inline constexpr int kThreads = kLanes * kWarps;
inline constexpr int kTileTokens = 16;

// `kColumns`: query heads of a group, padded to a multiple of 8.
template <typename Element, int kHeadDimension, int kQueryColumns>
struct Geometry {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kColumns = kQueryColumns;
  static constexpr int kBlocks = kColumns / 8;       // of 8 columns
  static constexpr int kChunks = kHeadDim / 8;       // of 16 bytes in a row
  static constexpr int kRowBytes = 2 * kHeadDim + 16;
  static constexpr int kHalfTileBytes = kTileTokens * kRowBytes;  // keys or values
  static constexpr int kTileBytes = 2 * kHalfTileBytes;
  static constexpr int kQueryBytes = kColumns * kRowBytes;  // of one key/value head
  // About 100 KiB for a block: two blocks a multiprocessor, 50 to 100 KiB in flight in
  // each. At 256 dimensions one block, 66 to 132 KiB.
  static constexpr int kStages =
      kHeadDim <= 64 ? 6 : (kHeadDim <= 96 ? 4 : (kHeadDim <= 128 ? 3 : 2));
  static constexpr int kRingBytes = kStages * kTileBytes;  // of a warp
  static constexpr int kPartialStride = kHeadDim + 4;      // floats; see combine.cuh
};

// The tokens that one warp attends to: tiles first, first + step, ... below end.
struct Work {
  int row;
  int kv_head;
  int begin, end;   // tokens that the query sees
  int first, step;  // tiles
  int tiles;        // of this warp
  int position;     // of the query: the newest token
};

__device__ inline Work assign(const Params& p, int split, int splits) {
  const int warp = threadIdx.x / kLanes;
  const int warps_per_head = kWarps / p.head_count;
  Work w;
  w.row = blockIdx.z;
  w.kv_head = blockIdx.y * p.head_count + warp / warps_per_head;
  const int room = p.table_width * static_cast<int>(p.page_size);
  w.end = max(min(p.lengths[w.row], room), 0);
  w.begin = max(w.end - p.window, 0);
  w.position = w.end - 1;
  // Splits are runs of tiles; the warps of a head take turns within one, so that they
  // read neighbouring slots of a page at the same time.
  const int first = w.begin / kTileTokens;
  const int count = (w.end + kTileTokens - 1) / kTileTokens - first;
  const int from = first + static_cast<int>(int64_t{count} * split / splits);
  const int to = first + static_cast<int>(int64_t{count} * (split + 1) / splits);
  w.step = warps_per_head;
  w.first = from + warp % warps_per_head;
  w.tiles = max(to - w.first + w.step - 1, 0) / w.step;
  return w;
}

inline constexpr int kAbsent = -1;

// Fetches this warp's tiles in order into its ring.
template <typename G>
class Loader {
 public:
  __device__ Loader(const Params& p, const Work& work, uint32_t ring)
      : p_(p), work_(work), ring_(ring) {
    const char* kv = static_cast<const char*>(p.kv);
    keys_ = kv + work.kv_head * G::kHeadDim * sizeof(typename G::T);
  }

  // Fills the ring with the first tiles.
  __device__ void start() {
    next_ = 0;
    ahead_ = locate(0);
#pragma unroll
    for (int stage = 0; stage < G::kStages; ++stage) fetch(stage);
  }

  // Starts the copies of the next tile into `stage`. Page ids are read one tile ahead:
  // their latency is not in the way of the copies that need them.
  __device__ void fetch(int stage) {
    const int slots = ahead_;
    if (next_ < work_.tiles) copy(ring_ + stage * G::kTileBytes, slots);
    commit_copies();  // an empty group keeps the count of groups that of tiles
    ahead_ = locate(++next_);
  }

 private:
  // Where this lane's token (lane % 16 of a tile) lies, in slots; kAbsent outside of
  // what the query sees, where nothing may be read: neither the page table's padding
  // nor a slot that may hold anything.
  __device__ int locate(int tile) const {
    const int lane = threadIdx.x % kLanes;
    const int token = (work_.first + tile * work_.step) * kTileTokens +
                      lane % kTileTokens;
    if (tile >= work_.tiles || token < work_.begin || token >= work_.end) {
      return kAbsent;
    }
    const uint32_t index = __umulhi(token, p_.page_reciprocal);  // token / page_size
    const uint32_t page =
        __ldg(p_.page_table + int64_t{work_.row} * p_.table_width + index);
    if (page >= p_.num_pages) return kAbsent;
    return page * p_.slots_per_page + (token - index * p_.page_size);
  }

  __device__ void copy(uint32_t tile, int slots) const {
    const int lane = threadIdx.x % kLanes;
    const int64_t to_values = p_.page_size * p_.slot_bytes;
#pragma unroll
    for (int i = 0; i < G::kChunks / 2; ++i) {
      const int index = lane + i * kLanes;
      const int row = index / G::kChunks, chunk = index % G::kChunks;
      const int slot = __shfl_sync(~0u, slots, row);
      const bool present = slot != kAbsent;
      const char* source = keys_ + (present ? slot : 0) * p_.slot_bytes + chunk * 16;
      const uint32_t target = tile + row * G::kRowBytes + chunk * 16;
      copy_async(target, source, present);
      copy_async(target + G::kHalfTileBytes, source + to_values, present);
    }
  }

  const Params& p_;
  const Work& work_;
  const char* keys_;
  uint32_t ring_;
  int next_;   // tile to fetch
  int ahead_;  // its slots
};

}  // namespace fdjax::decode_attention

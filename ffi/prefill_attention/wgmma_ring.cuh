// Hopper's kernel: what lies where in shared memory, who waits for whom, and the
// producer, which fills it.
//
// A warp starts TMA copies of what two warpgroups multiply, one tile of queries
// after the other. Queries, keys and values have two buffers each, and every buffer a
// barrier that says full and one that says empty.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/mbarrier.cuh"
#include "fdjax/tma.cuh"
#include "prefill_attention/load.cuh"

namespace fdjax::prefill_attention {

inline constexpr int kConsumers = 2;  // warpgroups, of 64 rows each
inline constexpr int kConsumerWarps = 4 * kConsumers;
inline constexpr int kGroupThreads = 128;
inline constexpr int kStages = 2;
inline constexpr int kLineElements = 64, kLineBytes = 128;  // of a box in shared memory

template <typename Element, int kHeadDimension, Use kUse>
struct WgmmaGeometry {
  using T = Element;
  static constexpr bool kShared = kUse == Use::kPrefixes;
  static constexpr bool kUnified = kUse == Use::kUnified;
  static constexpr bool kLeavesStates = kUse == Use::kStates;
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kTileKeys = kHeadDim <= 128 ? 128 : 64;
  static constexpr int kRowTiles = 1;
  static constexpr int kKeyTiles = kTileKeys / 8;
  static constexpr int kLines = kHeadDim / kLineElements;  // of a head
  static constexpr int kQueryBytes = kTileRows * kHeadDim * 2;
  static constexpr int kQueryStages =
      kHeadDim <= 128 ? 2 : 1;                                // that there is room for
  static constexpr int kKeyBytes = kTileKeys * kHeadDim * 2;  // and of values
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes =
      kQueryStages * kQueryBytes + 2 * kStages * kKeyBytes + kAlignment;
};

// What TMA knows of queries and of keys and values.
struct Sources {
  CUtensorMap queries;  // [lines of a head, queries, heads, 64]
  CUtensorMap slots;  // [lines of a slot, slots, 64], from this layer's keys in page 0
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct Ring {
  uint64_t full[kStages], empty[kStages];

  __device__ void init(int consumers) {
    for (uint64_t& each : full) mbarrier_init(&each, 1);
    for (uint64_t& each : empty) mbarrier_init(&each, consumers);
  }
};

struct Barriers {
  Ring queries, halves[2];

  __device__ void init() {
    queries.init(kConsumerWarps);
    for (Ring& ring : halves) ring.init(kConsumerWarps);
    mbarrier_init_fence();
  }
};

// Items of which some rows did not suit the unified maximum: these rows are computed
// again by the synchronised scheme, by the same block when it has done all items. What
// has not been stored is still there to be read: queries lie where results go.
struct Retries {
  static constexpr int kRounds = 1024;  // later ones come in the second pass alone
  // A bit an item, of the rows of each warp, which alone writes it.
  uint32_t of_warp[kConsumerWarps][kRounds / 32];

  // By all threads of the block.
  __device__ void clear() {
    for (int i = threadIdx.x; i < kConsumerWarps * kRounds / 32; i += blockDim.x) {
      of_warp[0][i] = 0;
    }
  }

  // By one lane of the warp.
  __device__ void add(int warp, int round) {
    of_warp[warp][round / 32] |= 1u << round % 32;
  }

  __device__ bool has(int warp, int round) const {
    return round >= kRounds || of_warp[warp][round / 32] >> round % 32 & 1;
  }

  // Rounds `32 * word` and on of which some warp has rows; the same in all lanes.
  __device__ uint32_t some(int word) const {
    const int warp = threadIdx.x % kLanes;
    return __reduce_or_sync(~0u, warp < kConsumerWarps ? of_warp[warp][word] : 0);
  }
};

template <typename G>
struct Buffers {
  uint32_t start;
  Barriers* barriers;
  // Whose queries those of each stage are; without tokens: all items have been there.
  Work* work;
  Retries* retries;  // of the unified scheme

  __device__ uint32_t queries(int stage) const {
    return start + stage * G::kQueryBytes;
  }
  __device__ uint32_t half(Half half, int stage) const {
    return queries(G::kQueryStages) + (2 * stage + half) * G::kKeyBytes;
  }
};

// The items of a block are a grid apart, in order of their keys; every other round goes
// backwards, so that blocks end together.
__device__ inline Work item_of_round(const Params& p, int round) {
  const int place =
      round % 2 == 0 ? blockIdx.x : static_cast<int>(gridDim.x - 1 - blockIdx.x);
  Work work = work_of(p, round * gridDim.x + place);
  work.round = round;
  return work;
}

// Fills the buffers, item after item. All lanes of one warp.
template <typename G>
class Producer {
 public:
  __device__ Producer(const Params& params, const Sources& sources,
                      const Buffers<G>& buffers)
      : params_(params),
        p_(params.attention),
        sources_(sources),
        buffers_(buffers),
        box_rows_(min(static_cast<int>(p_.page_size), G::kTileKeys)),
        pages_(G::kTileKeys / box_rows_),
        page_(threadIdx.x % pages_),
        line_(threadIdx.x / pages_) {}

  __device__ void run() {
    const int rounds = go_through(0, G::kUnified ? Retries::kRounds : INT32_MAX);
    if constexpr (G::kUnified) {
      const Cursor end = queries_;
      hand_over({});
      mbarrier_wait(&buffers_.barriers->queries.empty[end.stage], end.parity);
      again(rounds);
      go_through(rounds, INT32_MAX);
    }
    hand_over({});
  }

 private:
  // Of the items of rounds from `first` up to `end` those that there are; returns the
  // round after the last.
  __device__ int go_through(int first, int end) {
    for (int round = first; round < end; ++round) {
      const Work work = item_of_round(params_, round);
      if (work.tokens == 0) return round;
      hand_over(work);
      load(work);
    }
    return end;
  }

  // What did not suit the unified maximum. Consumers have been through all items.
  __device__ void again(int rounds) {
    for (int first = 0; first < rounds; first += 32) {
      uint32_t some = buffers_.retries->some(first / 32);
      for (; some != 0; some &= some - 1) {
        const Work work = item_of_round(params_, first + __ffs(some) - 1);
        hand_over(work);
        load(work);
      }
    }
  }

  // Outside of the KV array, whether keys or values are meant: it reads as zeros.
  static constexpr int kNowhere = INT32_MIN / 2;

  // Keys are one tile ahead of values, as their consumers are.
  __device__ void load(const Work& work) {
    int first = work.key_begin / G::kTileKeys * G::kTileKeys;
    int slot = slot_of(work, first), next = slot_of(work, first + G::kTileKeys);
    fetch(kKeys, work, slot);
    for (first += G::kTileKeys; first < work.key_end; first += G::kTileKeys) {
      fetch(kKeys, work, next);
      fetch(kValues, work, slot);
      slot = next;
      next = slot_of(work, first + G::kTileKeys);
    }
    fetch(kValues, work, slot);
  }

  // Where the first of this lane's keys lies.
  __device__ int slot_of(const Work& work, int first) const {
    const int token = first + page_ * box_rows_;
    if (token >= work.key_end) return kNowhere;
    return paged::slot_in(p_, paged::page_of(p_, work.row, token), token, kNowhere);
  }

  __device__ void fetch(Half half, const Work& work, int slot) {
    Ring& ring = buffers_.barriers->halves[half];
    Cursor& cursor = cursors_[half];
    mbarrier_wait(&ring.empty[cursor.stage], cursor.parity ^ 1);
    uint64_t* full = &ring.full[cursor.stage];
    if (threadIdx.x == 0) mbarrier_arrive_expect(full, G::kKeyBytes);
    __syncwarp();
    if (line_ < G::kLines) {
      const uint32_t target = buffers_.half(half, cursor.stage) +
                              (line_ * G::kTileKeys + page_ * box_rows_) * kLineBytes;
      const int values = half == kValues ? static_cast<int>(p_.value_slots) : 0;
      const int line = paged::line_of(p_, work.kv_head, half == kValues);
      tma_load_3d(target, &sources_.slots, 0, slot + values, line + line_, full,
                  CachePolicy::kNormal);
    }
    cursor.advance(kStages);
  }

  __device__ void hand_over(const Work& work) {
    Ring& ring = buffers_.barriers->queries;
    mbarrier_wait(&ring.empty[queries_.stage], queries_.parity ^ 1);
    uint64_t* full = &ring.full[queries_.stage];
    if (threadIdx.x == 0) {
      buffers_.work[queries_.stage] = work;
      const int tokens = G::kShared ? work.tokens : kTileRows / p_.group;
      const int bytes = tokens * p_.group * kLineBytes * G::kLines;
      mbarrier_arrive_expect(full, work.tokens == 0 ? 0 : bytes);
    }
    __syncwarp();
    if (work.tokens > 0) load_queries(work, buffers_.queries(queries_.stage), full);
    __syncwarp();
    queries_.advance(G::kQueryStages);
  }

  // A box of all tokens, or of one each, for each line of a head.
  __device__ void load_queries(const Work& work, uint32_t target, uint64_t* full) {
    const int boxes = G::kShared ? work.tokens : 1;
#pragma unroll 1
    for (int i = threadIdx.x; i < boxes * G::kLines; i += kLanes) {
      const int token = i / G::kLines, line = i % G::kLines;
      tma_load_4d(target + (line * kTileRows + token * p_.group) * kLineBytes,
                  &sources_.queries, 0, work.kv_head * p_.group,
                  G::kShared ? query_at(params_, work.first + token) : work.first, line,
                  full, CachePolicy::kNormal);
    }
  }

  const Params& params_;
  const decode_attention::Params& p_;
  const Sources& sources_;
  const Buffers<G>& buffers_;
  const int box_rows_, pages_;  // keys that are neighbours in memory; pages of a tile
  const int page_, line_;       // that this lane asks for
  Cursor cursors_[2];           // of each half
  Cursor queries_;
};

#endif

}  // namespace fdjax::prefill_attention

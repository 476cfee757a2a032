// Hopper's kernel: what lies where in shared memory, who waits for whom, and the
// producer, which fills it.
//
// A warp starts TMA copies of what two warpgroups multiply, one tile of queries
// after the other. Keys and values have two buffers each, queries `kQueryStages` (heads
// of 256 leave room for one), and every buffer a barrier that says full and one that
// says empty.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/mbarrier.cuh"
#include "fdjax/tma.cuh"
#include "prefill_attention/load.cuh"
#include "prefill_attention/pair.cuh"
#include "prefill_attention/retries.cuh"

namespace fdjax::prefill_attention {

inline constexpr int kGroupThreads = 128;
inline constexpr int kStages = 2;
inline constexpr int kLineElements = 64, kLineBytes = 128;  // of a box in shared memory

// `kPairs`: blocks work in pairs (pair.cuh).
template <typename Element, int kHeadDimension, Use kUse, bool kPairs = false>
struct WgmmaGeometry {
  using T = Element;
  static constexpr bool kShared = kUse == Use::kPrefixes;
  static constexpr bool kUnified = kUse == Use::kUnified;
  static constexpr bool kLeavesStates = kUse == Use::kStates;
  static constexpr bool kPaired = kPairs;
  static constexpr int kBlocks = kPairs ? kPair : 1;  // of a cluster
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
  static_assert(!kPairs || (kLines % kPair == 0 && !kShared));
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
  uint64_t passed;  // in a pair: consumers of both blocks have been through all items

  // `blocks`: that share keys and values.
  __device__ void init(int blocks) {
    queries.init(kConsumers * kGroupThreads);
    for (Ring& ring : halves) ring.init(blocks * kConsumerWarps);
    if (blocks > 1) mbarrier_init(&passed, blocks * kConsumerWarps);
    mbarrier_init_fence();
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
// backwards, so that blocks end together. So it is with pairs of blocks.
template <typename G>
__device__ Work item_of_round(const Params& p, int round) {
  const int takers = G::kPaired ? num_clusters() : static_cast<int>(gridDim.x);
  const int own = G::kPaired ? cluster_index() : static_cast<int>(blockIdx.x);
  const int index = round * takers + (round % 2 == 0 ? own : takers - 1 - own);
  Work work;
  if constexpr (G::kPaired) {
    work = work_in_pair(p, index, blockIdx.x % kPair, G::kTileKeys);
  } else {
    work = work_of(p, index);
  }
  work.round = round;
  return work;
}

// Where an item's tiles of keys begin, and before which key they end.
template <typename G>
__device__ int loop_begin(const Work& work) {
  return work.key_begin / G::kTileKeys * G::kTileKeys;
}

template <typename G>
__device__ int loop_end(const Work& work) {
  return G::kPaired ? work.loop_end : work.key_end;
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

  // With a unified maximum some items come a second time, behind all others. Both
  // passes are one loop: the code of each would not fit a producer's registers.
  __device__ void run() {
    constexpr int kFirstEnd = G::kUnified ? Retries::kRounds : INT32_MAX;
    uint32_t notes = ~0u;  // all items
    int end = kFirstEnd;
#pragma unroll 1
    for (;;) {
      const int rounds = go_through(notes, end);
      const Cursor last = queries_;
      hand_over({});
      if (!G::kUnified || end != kFirstEnd) return;
      wait_for_notes(last);
      notes = buffers_.retries->some(G::kBlocks);
      end = rounds < kFirstEnd ? rounds : INT32_MAX;
    }
  }

 private:
  // The items, as far as there are, of rounds up to `end`, with a unified maximum those
  // with a note. Returns the round after the last.
  __device__ int go_through(uint32_t notes, int end) {
    for (int round = 0; round < end; ++round) {
      if constexpr (G::kUnified) {
        const uint32_t own = __shfl_sync(~0u, notes, round / 32) >> round % 32;
        if (round < Retries::kRounds && (own & 1) == 0) continue;
      }
      const Work work = item_of_round<G>(params_, round);
      if (work.tokens == 0) return round;
      hand_over(work);
      load(work);
    }
    return end;
  }

  // Until consumers have been through all items; `end` is where they were told so.
  __device__ void wait_for_notes(const Cursor& end) const {
    if constexpr (G::kPaired) {
      mbarrier_wait_cluster(&buffers_.barriers->passed, 0);
    } else {
      mbarrier_wait(&buffers_.barriers->queries.empty[end.stage], end.parity);
    }
  }

  // Outside of the KV array, whether keys or values are meant: it reads as zeros.
  static constexpr int kNowhere = INT32_MIN / 2;

  // Keys are one tile ahead of values, as their consumers are.
  __device__ void load(const Work& work) {
    int first = loop_begin<G>(work);
    int slot = slot_of(work, first), next = slot_of(work, first + G::kTileKeys);
    fetch(kKeys, work, slot);
    for (first += G::kTileKeys; first < loop_end<G>(work); first += G::kTileKeys) {
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
    if (line_ < G::kLines && fetches(work)) {
      const uint32_t target = buffers_.half(half, cursor.stage) +
                              (line_ * G::kTileKeys + page_ * box_rows_) * kLineBytes;
      const int values = half == kValues ? static_cast<int>(p_.value_slots) : 0;
      const int line = paged::line_of(p_, work.kv_head, half == kValues);
      if constexpr (G::kPaired) {
        tma_load_3d_to(work.takers, target, &sources_.slots, 0, slot + values,
                       line + line_, full, CachePolicy::kNormal);
      } else {
        tma_load_3d(target, &sources_.slots, 0, slot + values, line + line_, full,
                    CachePolicy::kNormal);
      }
    }
    cursor.advance(kStages);
  }

  // In a pair that shares keys, each block fetches half of their lines.
  __device__ bool fetches(const Work& work) const {
    if (!G::kPaired || work.takers != kBoth) return true;
    constexpr int kEach = G::kLines / G::kBlocks;
    return line_ / kEach == static_cast<int>(blockIdx.x % G::kBlocks);
  }

  __device__ void hand_over(const Work& work) {
    Ring& ring = buffers_.barriers->queries;
    mbarrier_wait(&ring.empty[queries_.stage], queries_.parity ^ 1);
    uint64_t* full = &ring.full[queries_.stage];
    if (threadIdx.x == 0) {
      buffers_.work[queries_.stage] = work;
      const int tokens = G::kShared ? work.tokens : kTileRows / p_.group;
      const int bytes = tokens * p_.group * kLineBytes * G::kLines;
      mbarrier_arrive_expect(full, work.tokens > 0 ? bytes : 0);
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

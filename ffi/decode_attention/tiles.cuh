// The way of keys and values: from scattered pages through shared memory.
//
// A tile is 16 tokens of one key/value head. A stage holds a tile, keys and values, for
// each consumer warp of the block. One warp, the producer, fills the stages of a ring by
// bulk copies, one for each token and half: the heads of a block lie side by side in a
// slot. Rows of a stage are padded by 16 bytes, which makes their distance an odd
// multiple of 16: any 8 rows of a column of matrices lie in different banks.
#pragma once

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/ptx.cuh"

namespace fdjax::decode_attention {

inline constexpr int kLanes = 32;
inline constexpr int kTileTokens = 16;

#ifndef FD_WARPS
#define FD_WARPS 8
#define FD_STAGES 3
#endif
// `kColumns`: query heads of a group, padded to a multiple of 8.
template <typename Element, int kHeadDimension, int kQueryColumns>
struct Geometry {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kColumns = kQueryColumns;
  static constexpr int kWarps = FD_WARPS;  // consumers
  static constexpr int kThreads = kLanes * (kWarps + 1);
  static constexpr int kBlocks = kColumns / 8;  // of 8 columns
  static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes in a row
  static constexpr int kHeadBytes = 2 * kHeadDim;
  static constexpr int kRowBytes = kHeadBytes + 16;  // one head's, padded
  static constexpr int kStageBytes = 2 * kWarps * kTileTokens * kRowBytes;
  static constexpr int kQueryBytes = kColumns * kRowBytes;  // of one key/value head
  static constexpr int kStages = FD_STAGES;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kPartialStride = kHeadDim + 4;  // floats; see combine.cuh
};

// The tokens that a block attends to: of `begin` to `end`, which the query sees, those
// in the tiles `first` to `last`.
struct Work {
  int row;
  int kv_head;  // the block's first
  int begin, end;
  int first, last;
  int warps_per_head;  // they take the tiles in turns
  int stages;
  int row_bytes;  // of the block's heads in a stage, padded
};

template <typename G>
__device__ Work assign(const Params& p, int split, int splits) {
  Work w;
  w.row = blockIdx.z;
  w.kv_head = blockIdx.y * p.head_count;
  const int room = p.table_width * static_cast<int>(p.page_size);
  w.end = max(min(p.lengths[w.row], room), 0);
  w.begin = max(w.end - p.window, 0);
  const int first = w.begin / kTileTokens;
  const int count = (w.end + kTileTokens - 1) / kTileTokens - first;
  w.first = first + static_cast<int>(int64_t{count} * split / splits);
  w.last = first + static_cast<int>(int64_t{count} * (split + 1) / splits);
  w.warps_per_head = G::kWarps / p.head_count;
  w.stages = (w.last - w.first + w.warps_per_head - 1) / w.warps_per_head;
  w.row_bytes = p.head_count * G::kHeadBytes + 16;
  return w;
}

// A ring of stages in shared memory. `used` counts the stages taken so far, over all
// passes: it says which stage is next and which phase of its barriers.
template <typename G>
struct Ring {
  uint32_t stages;
  uint32_t full, empty;  // barriers, 8 bytes a stage

  __device__ void initialise() const {
    for (int i = 0; i < G::kStages; ++i) {
      barrier_initialise(full + 8 * i, 1);
      barrier_initialise(empty + 8 * i, G::kWarps);
    }
  }
  __device__ uint32_t stage(int used) const {
    return stages + used % G::kStages * G::kStageBytes;
  }
  __device__ uint32_t full_at(int used) const { return full + used % G::kStages * 8; }
  __device__ uint32_t empty_at(int used) const { return empty + used % G::kStages * 8; }
  __device__ static uint32_t phase(int used) { return used / G::kStages % 2; }
};

// Where a token lies, in slots. Ids past the end are read as the last page, as in the
// definition.
__device__ inline int locate(const Params& p, int row, int token) {
  const uint32_t index = __umulhi(token, p.page_reciprocal);  // token / page_size
  const uint32_t id = __ldg(p.page_table + int64_t{row} * p.table_width + index);
  return min(id, p.num_pages - 1) * p.slots_per_page + (token - index * p.page_size);
}

// The producer warp's pass over the block's tokens. Only slots that the query sees are
// read, and only their page ids: neither the page table's padding nor what lies in
// unused slots matters.
template <typename G>
__device__ void produce(const Params& p, const Work& work, const Ring<G>& ring,
                        int used) {
  constexpr int kPerLane = G::kWarps * kTileTokens / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int tokens = work.warps_per_head * kTileTokens;  // of a stage
  const int begin = max(work.first * kTileTokens, work.begin);
  const int end = min(work.last * kTileTokens, work.end);
  const uint32_t bytes = p.head_count * G::kHeadBytes;
  const char* keys = static_cast<const char*>(p.kv) + work.kv_head * G::kHeadBytes;
  const int64_t to_values = p.page_size * p.slot_bytes;
  // Page ids are read a stage ahead: nothing waits for their latency.
  int slots[kPerLane];
  const auto locate_stage = [&](int first) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int index = lane + i * kLanes, token = first + index;
      if (index < tokens && token >= begin && token < end) {
        slots[i] = locate(p, work.row, token);
      }
    }
  };
  int first = work.first * kTileTokens;
  locate_stage(first);
  for (int n = 0; n < work.stages; ++n, ++used, first += tokens) {
    barrier_wait(ring.empty_at(used), Ring<G>::phase(used) ^ 1);
    const int stop = min(first + tokens, end);
    // The newest token is the predecessor's result; older ones are not.
    if (stop == work.end) wait_for_predecessor();
    const uint32_t full = ring.full_at(used), stage = ring.stage(used);
    if (lane == 0) barrier_expect(full, 2 * bytes * (stop - max(first, begin)));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int index = lane + i * kLanes, token = first + index;
      if (index < tokens && token >= begin && token < end) {
        const char* source = keys + slots[i] * p.slot_bytes;
        const uint32_t target = stage + index * work.row_bytes;
        copy_bulk(target, source, bytes, full);
        copy_bulk(target + tokens * work.row_bytes, source + to_values, bytes, full);
      }
    }
    locate_stage(first + tokens);
  }
}

}  // namespace fdjax::decode_attention

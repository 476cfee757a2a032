// The way of keys and values from single slots to shared memory, copied by TMA: as one
// box where a tile's slots are neighbours (a prompt's pages), else a line at a time,
// one of each lane (tokens of several beams). For Hopper, and heads of whole lines.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/ptx.cuh"
#include "decode_attention/tma_ring.cuh"
#include "fdjax/tma.cuh"
#include "paged/slots.cuh"

namespace fdjax::decode_attention {

// Of the KV array, from this layer's keys in page 0: [lines of a slot, slots, 64].
struct SlotSource {
  CUtensorMap tile;  // boxes of a tile's slots, and a head's lines
  CUtensorMap line;  // of one line
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// As ThreadLoader.
template <typename G>
class SlotLoader : public TmaRing<G> {
  using Ring = TmaRing<G>;

 public:
  using Source = SlotSource;

  __device__ SlotLoader(const Params& p, const Work& work, uint32_t ring,
                        const Source& source, typename Ring::Barriers* barriers)
      : Ring(ring, barriers), p_(p), work_(work), source_(source) {}

  __device__ void locate() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) slots_[i] = slot_of_tile(i);
  }

  __device__ void start() {
    next_ = 0;
#pragma unroll
    for (int i = 0; i < G::kHalves; ++i) fetch(i);
  }

  __device__ void fetch(int place) {
    if (next_ / 2 >= work_.tiles) return;
    const bool values = next_ % 2 != 0;
    if (Ring::is_speaker()) Ring::expect(place);
    __syncwarp();
    copy(place, values);
    ++next_;
    if (!values) return;
#pragma unroll
    for (int i = 1; i < kAhead; ++i) slots_[i - 1] = slots_[i];
    slots_[kAhead - 1] = slot_of_tile(next_ / 2 + kAhead - 1);
  }

  // Values that the query does not see are of no slot, and zero.
  __device__ void clear_unseen(uint32_t /*values*/, int /*token*/) const {}

 private:
  // Where this lane's token (lane % 16 of a tile) lies; nowhere outside of what the
  // query sees, where the page table may hold anything.
  __device__ int slot_of_tile(int tile) const {
    const int token = work_.token(tile) + threadIdx.x % kTileTokens;
    if (tile >= work_.tiles || token < work_.begin || token >= work_.end) {
      return Ring::kNowhere;
    }
    const uint32_t slot = paged::page_of</*kAnySize=*/true>(p_, work_.row, token);
    return paged::slot_in</*kAnySize=*/true>(p_, slot, token, Ring::kNowhere);
  }

  __device__ void copy(int place, bool values) const {
    const int slot = slots_[0] + (values ? static_cast<int>(p_.value_slots) : 0);
    const int line = paged::line_of(p_, work_.kv_head, values);
    const int first = __shfl_sync(~0u, slot, 0), token = threadIdx.x % kTileTokens;
    if (__all_sync(~0u, slot == first + token)) {
      if (!Ring::is_speaker()) return;
      return fetch_box(Ring::at(place), source_.tile, slot, line, place);
    }
    // The lanes of a token take turns at its lines.
    for (int i = threadIdx.x % kLanes / kTileTokens; i < G::kLines;
         i += kLanes / kTileTokens) {
      fetch_box(Ring::at(place) + i * kColumnBytes + token * kLineBytes, source_.line,
                slot, line + i, place);
    }
  }

  // Beams of a group read the same prompts: nothing here is read only once.
  __device__ void fetch_box(uint32_t target, const CUtensorMap& source, int slot,
                            int line, int place) const {
    tma_load_3d(target, &source, 0, slot, line, Ring::full(place),
                CachePolicy::kNormal);
  }

  static constexpr int kAhead = (G::kHalves + 1) / 2 + 2;  // as ThreadLoader's
  const Params& p_;
  const Work& work_;
  const Source& source_;
  int next_;           // half to fetch
  int slots_[kAhead];  // of that and the following tiles: of this lane's token
};

#endif

}  // namespace fdjax::decode_attention

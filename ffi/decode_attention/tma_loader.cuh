// The way of keys and values from scattered pages to shared memory, copied by the copy
// engine (TMA): one instruction of one thread for half a tile. For Hopper, heads of
// whole lines (64 elements), and pages of whole tiles.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/ptx.cuh"
#include "decode_attention/tma_ring.cuh"
#include "fdjax/tma.cuh"
#include "paged/slots.cuh"

namespace fdjax::decode_attention {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// As ThreadLoader. Reads whole tiles, slots too that hold no token of the row yet.
template <typename G>
class TmaLoader : public TmaRing<G> {
  using Ring = TmaRing<G>;

 public:
  // Of the KV array, from this layer's keys in page 0: [lines of a slot, slots, 64].
  using Source = CUtensorMap;

  // `work` may change between a `locate` and the next one.
  __device__ TmaLoader(const Params& p, const Work& work, uint32_t ring,
                       const Source& source, typename Ring::Barriers* barriers)
      : Ring(ring, barriers), p_(p), work_(work), source_(source) {}

  // Asks for the first page ids.
  __device__ void locate() { later_page_ = page_of(0); }

  // Fills the ring with the first halves.
  __device__ void start() {
    next_ = 0;
    slot_ = slot_of(0, later_page_);
#pragma unroll
    for (int i = 0; i < G::kHalves; ++i) fetch(i);
    later_page_ = page_of(kLanes);
  }

  __device__ void fetch(int place) {
    const int tile = next_ / 2;
    if (tile >= work_.tiles) return;
    const bool values = next_ % 2 != 0;
    const int slot = __shfl_sync(~0u, slot_, tile % kLanes) +
                     (values ? static_cast<int>(p_.value_slots) : 0);
    if (Ring::is_speaker()) {
      const int line = paged::line_of(p_, work_.kv_head, values);
      Ring::expect(place);
      tma_load_3d(Ring::at(place), &source_, 0, slot, line, Ring::full(place),
                  CachePolicy::kEvictFirst);
    }
    if (++next_ % (2 * kLanes) == 0) {
      slot_ = slot_of(next_ / 2, later_page_);
      later_page_ = page_of(next_ / 2 + kLanes);
    }
  }

  // `token`: of the tile's first row. A slot that the query does not see may hold NaN,
  // and its weight of zero would not make that zero.
  __device__ void clear_unseen(uint32_t values, int token) const {
    if (token >= work_.begin && token + kTileTokens <= work_.end) return;
    for (int i = threadIdx.x % kLanes; i < kTileTokens * G::kChunks; i += kLanes) {
      const int row = i / G::kChunks;
      if (token + row >= work_.begin && token + row < work_.end) continue;
      store_shared(values + at_tile(row, i % G::kChunks), uint4{0, 0, 0, 0});
    }
    Ring::release_ring();
    __syncwarp();
  }

 private:
  static constexpr uint32_t kNoPage = UINT32_MAX;

  // The page of this lane's tile, of the 32 from `tile` on. (One load serves them all,
  // and none waits behind copies.)
  __device__ uint32_t page_of(int tile) const {
    tile += threadIdx.x % kLanes;
    if (tile >= work_.tiles) return kNoPage;
    return paged::page_of(p_, work_.row, work_.token(tile));
  }

  // The slot of that tile. Apart, so that nothing waits for a page id before its slot
  // is wanted.
  __device__ int slot_of(int tile, uint32_t page) const {
    return paged::slot_in(p_, page, work_.token(tile + threadIdx.x % kLanes),
                          Ring::kNowhere);
  }

  const Params& p_;
  const Work& work_;
  const Source& source_;
  int next_;             // half to fetch
  int slot_;             // of this lane's tile of 32
  uint32_t later_page_;  // of this lane's tile of the next 32
};

#endif

}  // namespace fdjax::decode_attention

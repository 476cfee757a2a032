// The way of keys and values from scattered pages to shared memory, copied by the
// threads: for any page size and head, and any GPU since sm_80.
#pragma once

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/ptx.cuh"
#include "decode_attention/tiles.cuh"
#include "paged/slots.cuh"

namespace fdjax::decode_attention {

// Fetches this warp's halves in order into its ring.
template <typename G>
class ThreadLoader {
 public:
  struct Source {};    // what only the host can make
  struct Barriers {};  // of a warp

  __device__ ThreadLoader(const Params& p, const Work& work, uint32_t ring,
                          const Source&, Barriers*)
      : p_(p), work_(work), ring_(ring) {}

  __device__ uint32_t at(int place) const { return ring_ + place * G::kHalfTileBytes; }

  __device__ void locate() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) slots_[i] = slot_of_tile(i);
  }

  __device__ void start() {
    next_ = 0;
#pragma unroll
    for (int i = 0; i < G::kHalves; ++i) fetch(i);
  }

  // Starts the copy of the next half into `place`, which the warp has read.
  __device__ void fetch(int place) {
    const bool values = next_ % 2 != 0;
    copy(at(place), values ? p_.value_offset() : 0);
    ++next_;
    if (!values) return;
    // Loads arrive in order: a page id asked for now comes after these copies. So it is
    // one that is needed when they have been consumed, a whole ring ahead. (One tile
    // ahead made every fetch wait for the copies before it: 5 % at 8 x 32768.)
#pragma unroll
    for (int i = 1; i < kAhead; ++i) slots_[i - 1] = slots_[i];
    slots_[kAhead - 1] = slot_of_tile(next_ / 2 + kAhead - 1);
  }

  // Until the oldest half is there; the warp may then read it.
  __device__ void wait(int /*place*/) {
    wait_copies<G::kHalves - 1>();
    __syncwarp();  // every lane's copies, not only this one's
  }

  // Makes values that the query does not see zero, where they are not already.
  __device__ void clear_unseen(uint32_t /*values*/, int /*token*/) const {}

  // By every thread that has written to the rings: copies may come over it after the
  // block's next barrier.
  __device__ static void release_ring() {}

 private:
  // Where this lane's token (lane % 16 of a tile) lies, in slots; paged::kAbsent
  // outside of what the query sees, where nothing may be read: neither the page table's
  // padding nor a slot that may hold anything.
  __device__ int slot_of_tile(int tile) const {
    const int lane = threadIdx.x % kLanes;
    const int token = work_.token(tile) + lane % kTileTokens;
    if (tile >= work_.tiles || token < work_.begin || token >= work_.end) {
      return paged::kAbsent;
    }
    return paged::slot_of</*kAnySize=*/true>(p_, work_.row, token);
  }

  // Half a tile, `behind` bytes after its keys. Without a next tile an empty group
  // keeps the count of groups.
  __device__ void copy(uint32_t target, int64_t behind) const {
    if (next_ / 2 < work_.tiles) {
      const int lane = threadIdx.x % kLanes;
      const char* const source = static_cast<const char*>(p_.kv) + behind +
                                 int64_t{p_.head_bytes} * work_.kv_head;
#pragma unroll
      for (int i = 0; i < G::kChunks / 2; ++i) {
        const int index = lane + i * kLanes;
        const int row = index / G::kChunks, chunk = index % G::kChunks;
        const int slot = __shfl_sync(~0u, slots_[0], row);
        const bool present = slot != paged::kAbsent;
        const int64_t offset = (present ? slot : 0) * p_.slot_bytes + chunk * 16;
        copy_async(target + at_tile(row, chunk), source + offset, present);
      }
    }
    commit_copies();
  }

  static constexpr int kAhead = (G::kHalves + 1) / 2 + 2;
  const Params& p_;
  const Work& work_;
  uint32_t ring_;
  int next_;           // half to fetch
  int slots_[kAhead];  // of that and the following tiles: of this lane's token
};

}  // namespace fdjax::decode_attention

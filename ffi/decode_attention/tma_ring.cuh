// A warp's ring of halves of tiles that TMA fills, whatever it fetches at a time.
#pragma once

#include <cstdint>

#include "decode_attention/tiles.cuh"
#include "fdjax/mbarrier.cuh"

namespace fdjax::decode_attention {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What TmaLoader and SlotLoader have of ThreadLoader's interface in common.
template <typename G>
class TmaRing {
 public:
  struct Barriers {
    uint64_t full[G::kHalves];
  };

  __device__ uint32_t at(int place) const { return ring_ + place * G::kHalfTileBytes; }

  __device__ void wait(int place) {
    mbarrier_wait(&full_[place], parities_ >> place & 1);
    parities_ ^= 1 << place;
  }

  __device__ static void release_ring() { async_proxy_fence(); }

 protected:
  // Outside of the KV array, whether keys or values are meant: it reads as zeros.
  static constexpr int kNowhere = INT32_MIN / 2;

  __device__ TmaRing(uint32_t ring, Barriers* barriers)
      : ring_(ring), full_(barriers->full) {
    if (is_speaker()) {
      for (int i = 0; i < G::kHalves; ++i) mbarrier_init(&full_[i], 1);
      mbarrier_init_fence();
    }
    __syncwarp();
  }

  __device__ static bool is_speaker() { return threadIdx.x % kLanes == 0; }

  // By the speaker, before half a tile is fetched into `place`.
  __device__ void expect(int place) const {
    mbarrier_arrive_expect(&full_[place], G::kHalfTileBytes);
  }

  // Counts what has come into `place`.
  __device__ uint64_t* full(int place) const { return &full_[place]; }

 private:
  const uint32_t ring_;
  uint64_t* const full_;
  uint32_t parities_ = 0;  // of the phase to wait for, a bit a place
};

#endif

}  // namespace fdjax::decode_attention

// Hopper's kernel with a unified maximum: what has to be computed again.
#pragma once

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "prefill_attention/tile.cuh"

namespace fdjax::prefill_attention {

inline constexpr int kConsumers = 2;  // warpgroups, of 64 rows each
inline constexpr int kGroupWarps = 4;
inline constexpr int kConsumerWarps = kGroupWarps * kConsumers;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Items of which some rows did not suit the unified maximum: these rows are computed
// again by the synchronised scheme, by the same block when it has done all items. What
// has not been stored is still there to be read: queries lie where results go.
struct Retries {
  // Later ones come in the second pass alone.
  static constexpr int kRounds = 32 * kLanes;
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

  // Of 32 rounds for each lane, those of which some warp of `blocks` blocks has rows.
  __device__ uint32_t some(int blocks) const {
    uint32_t rounds = 0;
    for (int block = 0; block < blocks; ++block) {
      const uint32_t first =
          blocks == 1 ? shared_address(of_warp) : cluster_address(of_warp, block);
      for (int warp = 0; warp < kConsumerWarps; ++warp) {
        rounds |= cluster_load_word(first + (warp * kLanes + threadIdx.x % kLanes) *
                                                sizeof(of_warp[0][0]));
      }
    }
    return rounds;
  }
};

#endif

}  // namespace fdjax::prefill_attention

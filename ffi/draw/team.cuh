// Threads of one block, and blocks of one cluster, that work on a row together.
#pragma once

#include <cstdint>

#include "draw/launch.h"
#include "fdjax/cluster.cuh"

namespace fdjax::draw {

inline constexpr unsigned kWarp = 0xffffffffu;

// A value and the token it belongs to, as one integer: the larger value is the larger
// integer, and of equal values the lower token. 0 is less than all of them.
__device__ inline uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 becomes 0
  return bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}

__device__ inline float unordered(uint32_t bits) {
  return __uint_as_float(bits ^ (bits >> 31 != 0 ? 0x80000000u : 0xffffffffu));
}

__device__ inline uint64_t ranked(float value, int token) {
  return uint64_t{ordered(value)} << 32 | ~static_cast<uint32_t>(token);
}
__device__ inline int token_of(uint64_t ranked) {
  return static_cast<int>(~static_cast<uint32_t>(ranked));
}
__device__ inline float value_of(uint64_t ranked) {
  return unordered(static_cast<uint32_t>(ranked >> 32));
}

__device__ inline uint64_t warp_largest(uint64_t value) {
  const uint32_t high = value >> 32;
  const uint32_t most = __reduce_max_sync(kWarp, high);
  const uint32_t low = high == most ? static_cast<uint32_t>(value) : 0;
  return uint64_t{most} << 32 | __reduce_max_sync(kWarp, low);
}

// Room for what `largest` exchanges; it takes turns between two.
struct Exchange {
  uint64_t warps[2][32];
  uint64_t blocks[2][kMaxBlocks];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The blocks of a cluster; or one block alone, whose `rank` is then 0.
struct Team {
  int blocks, rank;

  // What the blocks have written, here or in each other's memory, is visible after it.
  __device__ void sync() const {
    if (blocks == 1) {
      __syncthreads();
    } else {
      cluster_arrive();
      cluster_wait();
    }
  }
};

// The largest of the values of all threads of all blocks, in each of them. `turn` is 0
// in the first call and 1 in the second. Every block has started when it is called.
template <int kThreads>
__device__ uint64_t largest(uint64_t value, const Team& team, int turn,
                            Exchange& exchange) {
  value = warp_largest(value);
  const int lane = threadIdx.x % 32;
  if (lane == 0) exchange.warps[turn][threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_largest(lane < kThreads / 32 ? exchange.warps[turn][lane] : 0);
  if (team.blocks == 1) return value;
  if (threadIdx.x < team.blocks) {
    *in_block(&exchange.blocks[turn][team.rank], threadIdx.x) = value;
  }
  team.sync();
  for (int block = 0; block < team.blocks; ++block) {
    const uint64_t other = exchange.blocks[turn][block];
    value = other > value ? other : value;
  }
  return value;
}

#endif

}  // namespace fdjax::draw

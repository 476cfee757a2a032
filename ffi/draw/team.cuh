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

// Ways to make one value of two, and of those of a warp. 0 changes nothing.
struct Largest {
  __device__ static uint64_t pair(uint64_t a, uint64_t b) { return max(a, b); }

  __device__ static uint64_t warp(uint64_t value) {
    const uint32_t high = value >> 32;
    const uint32_t most = __reduce_max_sync(kWarp, high);
    const uint32_t low = high == most ? static_cast<uint32_t>(value) : 0;
    return uint64_t{most} << 32 | __reduce_max_sync(kWarp, low);
  }
};

struct Sum {
  __device__ static uint64_t pair(uint64_t a, uint64_t b) { return a + b; }

  __device__ static uint64_t warp(uint64_t value) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      value += __shfl_xor_sync(kWarp, value, lanes);
    }
    return value;
  }
};

// Room for what `combine` exchanges; calls take turns between two.
struct Exchange {
  uint64_t warps[2][32];
  uint64_t blocks[2][kMaxBlocks];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The blocks of a cluster; or one block alone, whose `rank` is then 0.
struct Team {
  int blocks, rank;
  int turn = 0;

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

// The values of all threads of all blocks made one, in each of them. Every block has
// started when it is called.
template <int kThreads, typename Way>
__device__ uint64_t combine(uint64_t value, Team& team, Exchange& exchange) {
  const int lane = threadIdx.x % 32, turn = team.turn;
  team.turn ^= 1;
  value = Way::warp(value);
  if (lane == 0) exchange.warps[turn][threadIdx.x / 32] = value;
  __syncthreads();
  value = Way::warp(lane < kThreads / 32 ? exchange.warps[turn][lane] : 0);
  if (team.blocks == 1) return value;
  if (threadIdx.x < team.blocks) {
    *in_block(&exchange.blocks[turn][team.rank], threadIdx.x) = value;
  }
  team.sync();
  value = 0;
  for (int block = 0; block < team.blocks; ++block) {
    value = Way::pair(value, exchange.blocks[turn][block]);
  }
  return value;
}

#endif

}  // namespace fdjax::draw

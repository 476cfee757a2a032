// The smallest cutoff that is enough: radix select over the bits of the gaps.
//
// Every token has a weight, 1 to count tokens or its probability to add those up.
// Weights are added in bins of neighbouring keys, first in those of equal width as
// gaps, where logits spread over many bins; then the one bin that holds the cutoff is
// cut into bins of equal width as integers, until a bin is a single key: three rounds
// as a rule.
//
// All sums are of integers: the same whatever the order of the additions.
#pragma once

#include <cstdint>

#include "draw/row.cuh"
#include "draw/team.cuh"

namespace fdjax::draw {

inline constexpr int kLogBins = 10, kBins = 1 << kLogBins;
inline constexpr int kRoom = 256;           // of a list, in tokens
inline constexpr float kBinsOfGap = 32.0f;  // a power of two: products are exact

// What a block of a row holds beside its gaps.
struct alignas(16) Shared {
  uint32_t bins[kBins];  // of this block's tokens: the weight in each bin
  union {
    uint32_t sums[kBins];  // of all blocks' tokens
    uint2 found[kRoom];    // keys and tokens that this block adds to the list
  };
  uint32_t warps[32];
  struct Bin {
    uint32_t below, upto;  // weight before it, and with it
    int index;
  } bin;
  Exchange exchange;
  int count;       // of `found`
  uint32_t bound;  // some token's score, as `ordered`: lower ones cannot win

  template <int kThreads>
  __device__ void init() {
    clear<kThreads>();
    if (threadIdx.x == 0) {
      count = 0;
      bound = ordered(-INFINITY);
    }
  }

  template <int kThreads>
  __device__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Keys from `first` to `last`, and how they are cut into bins.
struct Bins {
  uint32_t first, last;
  int shift;  // a bin has 2^shift keys; -1: all gaps, in bins of equal width

  __device__ static Bins of_gaps(uint32_t last) { return {0, last, -1}; }

  __device__ static Bins of_keys(uint32_t first, uint32_t last) {
    return {first, last, max(0, 32 - __clz(last - first) - kLogBins)};
  }

  __device__ int bin_of(uint32_t key) const {
    if (shift >= 0) return (key - first) >> shift;
    return min(static_cast<int>(__uint_as_float(key) * kBinsOfGap), kBins - 1);
  }

  __device__ uint32_t first_of(int bin) const {
    if (shift >= 0) return first + (static_cast<uint32_t>(bin) << shift);
    return __float_as_uint(static_cast<float>(bin) / kBinsOfGap);
  }

  // The keys of a bin, cut anew.
  __device__ Bins within(int bin) const {
    const uint32_t end = bin == kBins - 1 ? last : min(last, first_of(bin + 1) - 1);
    return of_keys(first_of(bin), end);
  }
};

struct Count {
  __device__ uint32_t operator()(uint32_t) const { return 1; }
};

// Probabilities in fixed point; the best token's is `one`.
struct Mass {
  float one;

  __device__ uint32_t operator()(uint32_t key) const {
    return __float2uint_rn(expf(-__uint_as_float(key)) * one);
  }
};

// Adds the blocks' bins up, in every block, and empties them: a block adds its share of
// the bins, and sends every block the sums.
template <int kThreads>
__device__ void add_up(const Team& team, Shared& shared) {
  team.sync();
  const int log_blocks = __popc(team.blocks - 1);
  const int first = team.rank << (kLogBins - log_blocks);
  constexpr int kEach = kBins / kThreads;
  const int other = threadIdx.x & (team.blocks - 1);
  int bins[kEach];
  uint32_t sums[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {  // all loads before the first store
    bins[i] = first + ((threadIdx.x + i * kThreads) >> log_blocks);
    sums[i] = in_block(shared.bins, other)[bins[i]];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    for (int lanes = team.blocks / 2; lanes > 0; lanes /= 2) {
      sums[i] += __shfl_xor_sync(kWarp, sums[i], lanes);
    }
    in_block(shared.sums, other)[bins[i]] = sums[i];
  }
  team.sync();
  shared.clear<kThreads>();
}

// Finds the first bin up to which the weight reaches `target`, which is positive; false
// where none is: `bin` is then what lies after the last, and `upto` all weight.
template <int kThreads>
__device__ bool find(uint32_t target, Shared& shared) {
  constexpr int kEach = kBins / kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sums[kEach], own = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    sums[i] = shared.sums[threadIdx.x * kEach + i];
    own += sums[i];
  }
  uint32_t upto = own;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint32_t before = __shfl_up_sync(kWarp, upto, lanes);
    if (lane >= lanes) upto += before;
  }
  if (lane == 31) shared.warps[warp] = upto;
  __syncthreads();
  const uint32_t of_warp = lane < kThreads / 32 ? shared.warps[lane] : 0;
  const uint32_t all = __reduce_add_sync(kWarp, of_warp);
  uint32_t below = upto - own + __reduce_add_sync(kWarp, lane < warp ? of_warp : 0);
  if (target > all && threadIdx.x == 0) shared.bin = {all, all, kBins};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t next = below + sums[i];
    if (below < target && target <= next) {
      shared.bin = {below, next, static_cast<int>(threadIdx.x) * kEach + i};
    }
    below = next;
  }
  __syncthreads();
  return target <= all;
}

// One round: narrows `bins` to the bin that holds the cutoff, and takes what lies
// before it off the target; false, and nothing is changed, where all tokens are not
// enough. Weights of all tokens together are less than 2^32.
template <int kThreads, typename Weight>
__device__ bool narrow(const Row& row, const Team& team, Shared& shared, Weight weight,
                       Bins* bins, uint32_t* target) {
  const Bins cut = *bins;
  row.each<kThreads>([&](uint32_t key, int) {
    if (key < cut.first || key > cut.last) return;
    atomicAdd(&shared.bins[cut.bin_of(key)], weight(key));
  });
  add_up<kThreads>(team, shared);
  if (!find<kThreads>(*target, shared)) return false;
  *target -= shared.bin.below;
  *bins = cut.within(shared.bin.index);
  return true;
}

// The remaining rounds: the smallest key of `bins` up to which the weight reaches
// target.
template <int kThreads, typename Weight>
__device__ uint32_t settle(const Row& row, const Team& team, Shared& shared,
                           Weight weight, Bins bins, uint32_t target) {
  while (bins.first < bins.last) {
    if (!narrow<kThreads>(row, team, shared, weight, &bins, &target)) break;
  }
  return bins.last;
}

#endif

}  // namespace fdjax::draw

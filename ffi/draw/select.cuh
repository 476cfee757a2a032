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
inline constexpr int kRoom = 1024;            // of a list, in tokens
inline constexpr float kBinsOfGap = 32.0f;    // a power of two: products are exact
inline constexpr float kOne = 4294967296.0f;  // a weight of 1 in fixed point, 2^32

// What the blocks of a row have in common.
struct alignas(16) Shared {
  // Of each bin, in this block: the sums of the halves of its tokens' weights. A block
  // has at most kMaxBlockVocab tokens, so that neither half overflows.
  uint32_t low[kBins], high[kBins];
  uint64_t sums[kBins];  // of each bin, in all blocks
  uint64_t warps[32];
  struct Found {
    uint64_t below, upto;  // weight before its bin, and with it
    int bin;
  } found;
  Exchange exchange;
  uint2 own[kRoom];  // keys and tokens that this block has found for the list
  int count;         // of those
  uint32_t bound;    // some token's score, as `ordered`: lower ones cannot win

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
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) low[bin] = high[bin] = 0;
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The tokens that a team still looks at: a row's, or the few of a list.
struct Tokens {
  Row row;
  const uint2* list = nullptr;
  int listed = 0;

  template <int kThreads, typename F>
  __device__ void each(F f) const {
    if (list == nullptr) return row.each<kThreads>(f);
    for (int i = threadIdx.x; i < listed; i += kThreads) {
      const uint2 entry = list[i];
      f(entry.x, static_cast<int>(entry.y));
    }
  }
};

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
  __device__ static uint32_t of(uint32_t) { return 1; }
};

struct Mass {
  __device__ static uint32_t of(uint32_t key) {
    return __float2uint_rn(expf(-__uint_as_float(key)) * kOne);  // at most 2^32 - 1
  }
};

// Adds the blocks' sums of each bin up, in every block, and empties the bins: a block
// adds its share of them and sends every block the result.
template <int kThreads>
__device__ void add_up(const Team& team, Shared& shared) {
  team.sync();
  const int log_blocks = __popc(team.blocks - 1);
  const int first = team.rank << (kLogBins - log_blocks);
  for (int i = threadIdx.x; i < kBins; i += kThreads) {
    const int other = i & (team.blocks - 1), bin = first + (i >> log_blocks);
    uint64_t sum = *in_block(&shared.low[bin], other);
    sum += uint64_t{*in_block(&shared.high[bin], other)} << 16;
    for (int lanes = team.blocks / 2; lanes > 0; lanes /= 2) {
      sum += __shfl_xor_sync(kWarp, sum, lanes);
    }
    *in_block(&shared.sums[bin], other) = sum;
  }
  team.sync();
  shared.clear<kThreads>();
}

// The first bin up to which the weight reaches target_of(all weight), which is
// positive; false where none is. Ends with the block's threads at one point, if it is
// true.
template <int kThreads, typename Target>
__device__ bool find(Target target_of, Shared& shared, uint64_t* target) {
  constexpr int kOwn = kBins / kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sums[kOwn], own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own += sums[i] = shared.sums[threadIdx.x * kOwn + i];
  uint64_t upto = own;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint64_t before = __shfl_up_sync(kWarp, upto, lanes);
    if (lane >= lanes) upto += before;
  }
  if (lane == 31) shared.warps[warp] = upto;
  __syncthreads();
  uint64_t all = 0, below = upto - own;
#pragma unroll
  for (int other = 0; other < kThreads / 32; ++other) {
    const uint64_t sum = shared.warps[other];
    if (other < warp) below += sum;
    all += sum;
  }
  *target = target_of(all);
  if (*target > all) return false;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const uint64_t next = below + sums[i];
    if (below < *target && *target <= next) {
      shared.found = {below, next, static_cast<int>(threadIdx.x) * kOwn + i};
    }
    below = next;
  }
  __syncthreads();
  return true;
}

// One round: narrows `bins` to the bin that holds the cutoff, and takes what lies
// before it off the target; false, and nothing is changed, where all tokens are not
// enough.
template <int kThreads, typename Weight, typename Target>
__device__ bool narrow(const Tokens& tokens, const Team& team, Shared& shared,
                       Target target_of, Bins* bins, uint64_t* target) {
  tokens.each<kThreads>([&](uint32_t key, int) {
    if (key < bins->first || key > bins->last) return;
    const uint32_t weight = Weight::of(key);
    const int bin = bins->bin_of(key);
    if ((weight & 0xffff) != 0) atomicAdd(&shared.low[bin], weight & 0xffff);
    if (weight >> 16 != 0) atomicAdd(&shared.high[bin], weight >> 16);
  });
  add_up<kThreads>(team, shared);
  if (!find<kThreads>(target_of, shared, target)) return false;
  *target -= shared.found.below;
  *bins = bins->within(shared.found.bin);
  return true;
}

// The remaining rounds: the smallest key of `bins` up to which the weight reaches
// target.
template <int kThreads, typename Weight>
__device__ uint32_t settle(const Tokens& tokens, const Team& team, Shared& shared,
                           Bins bins, uint64_t target) {
  while (bins.first < bins.last) {
    const uint64_t wanted = target;
    const auto same = [=](uint64_t) { return wanted; };
    if (!narrow<kThreads, Weight>(tokens, team, shared, same, &bins, &target)) break;
  }
  return bins.last;
}

// Puts the tokens with keys up to `last`, at most kRoom of them, into a list, and the
// first block alone goes on with them: true there, false in all others.
template <int kThreads>
__device__ bool gather(Tokens* tokens, Team* team, Shared& shared, uint32_t last) {
  tokens->each<kThreads>([&](uint32_t key, int token) {
    if (key > last) return;
    const int at = atomicAdd(&shared.count, 1);
    if (at < kRoom) shared.own[at] = make_uint2(key, token);
  });
  team->sync();
  if (team->rank == 0) {
    constexpr int kReaders = kThreads / kMaxBlocks;  // of each block's list
    const int source = threadIdx.x / kReaders;
    int all = 0, start = 0, count = 0;
#pragma unroll
    for (int block = 0; block < kMaxBlocks; ++block) {
      if (block >= team->blocks) break;
      const int listed = *in_block(&shared.count, block);
      if (block < source) start += listed;
      if (block == source) count = listed;
      all += listed;
    }
    // In the place of the gaps, which nobody needs any more.
    uint2* list = reinterpret_cast<uint2*>(tokens->row.packs);
    for (int i = threadIdx.x % kReaders; i < count && start + i < kRoom;
         i += kReaders) {
      list[start + i] = in_block(shared.own, source)[i];
    }
    tokens->list = list;
    tokens->listed = min(all, kRoom);
  }
  team->sync();  // no block leaves while its list is read
  const bool first = team->rank == 0;
  *team = {1, 0};
  return first;
}

#endif

}  // namespace fdjax::draw

// The few tokens that a cutoff is known to leave, as a list in the first block.
#pragma once

#include <cstdint>

#include "draw/row.cuh"
#include "draw/select.cuh"
#include "draw/team.cuh"

namespace fdjax::draw {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct List {
  uint2* entries;  // keys and tokens, in no order
  int count = -1;  // there is none

  __device__ bool exists() const { return count >= 0; }
};

// Puts the tokens with keys up to `last`, at most kRoom of them, into a list, and the
// first block alone goes on with them: true there, false in all others.
template <int kThreads>
__device__ bool gather(const Row& row, uint32_t last, Team& team, Shared& shared,
                       List* list) {
  row.each<kThreads>([&](uint32_t key, int token) {
    if (key > last) return;
    const int at = atomicAdd(&shared.count, 1);
    if (at < kRoom) shared.found[at] = make_uint2(key, token);
  });
  team.sync();
  if (team.rank == 0) {
    constexpr int kReaders = kThreads / kMaxBlocks;  // of each block's tokens
    const int source = threadIdx.x / kReaders;
    int all = 0, start = 0, count = 0;
#pragma unroll
    for (int block = 0; block < kMaxBlocks; ++block) {
      if (block >= team.blocks) break;
      const int found = *in_block(&shared.count, block);
      if (block < source) start += found;
      if (block == source) count = found;
      all += found;
    }
    // In the place of the gaps, which nobody needs any more.
    list->entries = reinterpret_cast<uint2*>(row.packs);
    list->count = min(all, kRoom);
    for (int i = threadIdx.x % kReaders; i < count && start + i < kRoom;
         i += kReaders) {
      list->entries[start + i] = in_block(shared.found, source)[i];
    }
  }
  team.sync();  // no block leaves while its tokens are read
  const bool first = team.rank == 0;
  team.blocks = 1;
  return first;
}

// The smallest key of a list up to which the weight reaches target_of(all weight), of
// keys up to `cutoff`; that where none is. Every entry adds up those before it.
template <int kThreads, typename Weight, typename Target>
__device__ uint32_t smallest(const List& list, uint32_t cutoff, Weight weight,
                             Target target_of, Team& team, Shared& shared) {
  static_assert(kRoom <= kThreads && kRoom <= kBins);
  uint32_t* weights = shared.bins;  // which are empty, and not used again
  for (int i = threadIdx.x; i < list.count; i += kThreads) {
    const uint32_t key = list.entries[i].x;
    weights[i] = key <= cutoff ? weight(key) : 0;
  }
  __syncthreads();
  int lanes = 1;  // that share an entry
  while (lanes < 32 && 2 * lanes * list.count <= kThreads) lanes *= 2;
  const int entry = threadIdx.x / lanes;
  const uint32_t key = entry < list.count ? list.entries[entry].x : 0xffffffffu;
  uint64_t upto = 0;
  if (key <= cutoff) {
    for (int i = threadIdx.x % lanes; i < list.count; i += lanes) {
      if (list.entries[i].x <= key) upto += weights[i];
    }
  }
  for (int other = lanes / 2; other > 0; other /= 2) {
    upto += __shfl_xor_sync(kWarp, upto, other);
  }
  const uint64_t all = combine<kThreads, Largest>(upto, team, shared.exchange);
  const uint64_t target = target_of(all);
  const bool enough = key <= cutoff && upto >= target;
  const uint64_t least =
      combine<kThreads, Largest>(enough ? ~key : 0, team, shared.exchange);
  return min(cutoff, ~static_cast<uint32_t>(least));
}

#endif

}  // namespace fdjax::draw

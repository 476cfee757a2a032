// The few tokens that a cutoff is known to leave: a list, with which one warp of the
// first block goes on alone. It waits for nobody.
#pragma once

#include <cstdint>

#include "draw/row.cuh"
#include "draw/select.cuh"
#include "draw/team.cuh"

namespace fdjax::draw {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct List {
  uint2* entries;  // keys and tokens, in no order
  int count = -1;  // there is no list

  __device__ bool exists() const { return count >= 0; }

  // f(i, key, token) for every entry of this thread.
  template <typename F>
  __device__ void each(F f) const {
    for (int i = threadIdx.x; i < count; i += 32) {
      f(i, entries[i].x, static_cast<int>(entries[i].y));
    }
  }
};

// Makes a list of the tokens with keys up to `last`, at most kRoom of them. True in the
// warp that goes on; if the row has several blocks, it ends with cluster_wait.
template <int kThreads>
__device__ bool gather(const Row& row, uint32_t last, const Team& team, Shared& shared,
                       List* list) {
  static_assert(kThreads / 32 >= kMaxBlocks);
  row.each<kThreads>([&](uint32_t key, int token) {
    if (key > last) return;
    const int at = atomicAdd(&shared.count, 1);
    if (at < kRoom) shared.found[at] = make_uint2(key, token);
  });
  team.sync();
  // In the place of the gaps, which nobody needs any more.
  list->entries = reinterpret_cast<uint2*>(row.packs);
  const int lane = threadIdx.x % 32, source = threadIdx.x / 32;
  if (team.rank == 0 && source < team.blocks) {
    const uint2* found = in_block(shared.found, source);
    const uint2 early = found[lane];  // an entry or not, before it is known
    const int count = lane < team.blocks ? *in_block(&shared.count, lane) : 0;
    const int start = __reduce_add_sync(kWarp, lane < source ? count : 0);
    const int end = min(kRoom, start + __shfl_sync(kWarp, count, source));
    if (start + lane < end) list->entries[start + lane] = early;
    for (int i = lane + 32; start + i < end; i += 32)
      list->entries[start + i] = found[i];
    list->count = min(kRoom, __reduce_add_sync(kWarp, count));
  }
  __syncthreads();
  const bool goes_on = team.rank == 0 && source == 0;
  if (team.blocks > 1) {
    cluster_arrive_relaxed();  // no block leaves while its tokens are read
    if (!goes_on) cluster_wait();
  }
  return goes_on;
}

// The smallest key of a list up to which the weight reaches target_of(all weight), of
// keys up to `cutoff`; that where none is. Every entry adds up those before it.
template <typename Weight, typename Target>
__device__ uint32_t smallest(const List& list, uint32_t cutoff, Weight weight,
                             Target target_of, Shared& shared) {
  constexpr int kBatch = 8;
  static_assert(kRoom % kBatch == 0);
  static_assert(kRoom * (sizeof(uint2) + sizeof(uint64_t)) <= sizeof(shared.bins));
  uint2* weighed = reinterpret_cast<uint2*>(shared.bins);  // which are not used again
  uint64_t* weight_upto = reinterpret_cast<uint64_t*>(weighed + kRoom);
  __syncwarp();
  list.each([&](int i, uint32_t key, int) {
    weighed[i] = make_uint2(key, key <= cutoff ? weight(key) : 0);
  });
  const int end = (list.count + kBatch - 1) / kBatch * kBatch;
  for (int i = list.count + threadIdx.x; i < end; i += 32) {
    weighed[i] = make_uint2(0xffffffffu, 0);
  }
  __syncwarp();
  uint64_t all = 0;
  list.each([&](int i, uint32_t key, int) {
    uint64_t upto = 0;
#pragma unroll 1
    for (int j = 0; j < list.count; j += kBatch) {
      uint2 others[kBatch];  // read together
#pragma unroll
      for (int n = 0; n < kBatch; ++n) others[n] = weighed[j + n];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) upto += others[n].x <= key ? others[n].y : 0;
    }
    weight_upto[i] = upto;
    all = max(all, upto);
  });
  const uint64_t target = target_of(Largest::warp(all));
  uint32_t least = cutoff;
  list.each([&](int i, uint32_t key, int) {
    if (weight_upto[i] >= target) least = min(least, key);
  });
  return __reduce_min_sync(kWarp, least);
}

#endif

}  // namespace fdjax::draw

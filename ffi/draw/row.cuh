// A row of logits: read once, then kept in the shared memory of its blocks as gaps.
//
// The gap of a token says how far it lies below the best one, in units of temperature.
// Gaps are not negative, hence their bits as integers, the keys, have the same order.
#pragma once

#include <cstdint>

#include "draw/team.cuh"

namespace fdjax::draw {

inline constexpr uint32_t kInfinity = 0x7f800000;  // the key of an infinite gap
inline constexpr int kLoads = 4;                   // of a thread, at the same time

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Four neighbouring tokens, aligned in memory: a pack. The first and the last one of a
// row may lie in part outside of it; the tokens there count as impossible ones.
struct Row {
  const float* logits;  // of the whole row
  float4* packs;        // of this block, in shared memory
  int count;            // of packs
  int first;            // token at which they start; of the first block, 0 to -3
  int vocab;

  __device__ Row(const Params& p, int row, const Team& team, float4* memory)
      : logits(p.logits + int64_t{row} * p.vocab), packs(memory), vocab(p.vocab) {
    const int before = reinterpret_cast<uintptr_t>(logits) / sizeof(float) % 4;
    const int all = (vocab + before + 3) / 4;
    const int share = (all + team.blocks - 1) / team.blocks;
    const int begin = share * team.rank;
    count = max(0, min(share, all - begin));
    first = 4 * begin - before;
  }

  __device__ bool whole(int pack) const {
    const int token = first + 4 * pack;
    return token >= 0 && token + 4 <= vocab;
  }

  __device__ float4 load(int pack) const {
    return __ldcs(reinterpret_cast<const float4*>(logits + first + 4 * pack));
  }

  __device__ float load_part(int pack, int i) const {
    const int token = first + 4 * pack + i;
    return token >= 0 && token < vocab ? logits[token] : -INFINITY;
  }

  // f(key, token) for every token of this thread.
  template <int kThreads, typename F>
  __device__ void each(F f) const {
    for (int pack = threadIdx.x; pack < count; pack += kThreads) {
      const float4 gaps = packs[pack];
      const int token = first + 4 * pack;
      f(__float_as_uint(gaps.x), token);
      f(__float_as_uint(gaps.y), token + 1);
      f(__float_as_uint(gaps.z), token + 2);
      f(__float_as_uint(gaps.w), token + 3);
    }
  }
};

// The best token of a thread so far. What is not a number is never best.
struct Best {
  float value = -INFINITY;
  int token = INT32_MAX;

  __device__ void meet(float other, int its_token) {  // in the order of tokens
    if (other > value) {
      value = other;
      token = its_token;
    }
  }

  __device__ void meet(float4 others, int first) {
    meet(others.x, first);
    meet(others.y, first + 1);
    meet(others.z, first + 2);
    meet(others.w, first + 3);
  }
};

// Reads the row, into shared memory if `kKeeps`; this thread's best token.
template <int kThreads, bool kKeeps>
__device__ uint64_t read(const Row& row) {
  Best best;
  for (int start = threadIdx.x; start < row.count; start += kLoads * kThreads) {
    float4 packs[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int pack = start + i * kThreads;
      packs[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      if (pack < row.count && row.whole(pack)) packs[i] = row.load(pack);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int pack = start + i * kThreads;
      best.meet(packs[i], row.first + 4 * pack);
      if (kKeeps && pack < row.count) row.packs[pack] = packs[i];
    }
  }
  uint64_t all = ranked(best.value, best.token);
  // The packs at the edges, each by the thread that has just written it.
  for (const int pack : {0, row.count - 1}) {
    if (row.count == 0 || row.whole(pack) || threadIdx.x != pack % kThreads) continue;
    for (int i = 0; i < 4; ++i) {
      const float value = row.load_part(pack, i);
      const int token = row.first + 4 * pack + i;
      if (kKeeps) reinterpret_cast<float*>(row.packs + pack)[i] = value;
      if (value > -INFINITY) all = max(all, ranked(value, token));
    }
  }
  return all;
}

// Logits in shared memory become gaps; each thread's own.
template <int kThreads>
__device__ void make_gaps(const Row& row, float highest, float temperature) {
  for (int pack = threadIdx.x; pack < row.count; pack += kThreads) {
    float4 x = row.packs[pack];
    x.x = (highest - x.x) / temperature;
    x.y = (highest - x.y) / temperature;
    x.z = (highest - x.z) / temperature;
    x.w = (highest - x.w) / temperature;
    row.packs[pack] = x;
  }
}

#endif

}  // namespace fdjax::draw

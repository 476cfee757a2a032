// draw on a GPU: a cluster of blocks a row.
//
//   logits --> highest --> gaps --> min-p, top-k, top-p: a cutoff --> noise --> token
//
// * The row is read once; each block keeps its share in shared memory (row.cuh).
// * A cutoff is found from sums over bins of gaps, which the blocks add up through
//   distributed shared memory (select.cuh). Where a cutoff is known to leave few
//   tokens, the first block gathers them and goes on alone.
// * Noise is made for the tokens that are kept and can still win: its bits are those of
//   the definition, its largest value is known, and so is some token's score.
//
// A row's result depends on the row alone: sums are of integers, maxima have no order,
// and what is skipped cannot win.
#pragma once

#include "draw/list.cuh"
#include "draw/noise.cuh"
#include "draw/params.h"
#include "draw/row.cuh"
#include "draw/select.cuh"
#include "draw/team.cuh"
#include "fdjax/gpu.h"

namespace fdjax::draw {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ inline Team team_of(int blocks) {
  return {blocks, static_cast<int>(blockIdx.x) & (blocks - 1)};
}

// The row's highest logit and its token, in every thread of every block.
template <int kThreads, bool kKeeps>
__device__ uint64_t highest(const Row& row, Team& team, Exchange& exchange) {
  if (team.blocks > 1) cluster_arrive_relaxed();
  const uint64_t best = read<kThreads, kKeeps>(row);
  if (team.blocks > 1) cluster_wait();  // all blocks have started
  return combine<kThreads, Largest>(best, team, exchange);
}

// Of a row without numbers above -inf the token is 0.
__device__ inline void write_token(const Params& p, int row, const Team& team,
                                   uint64_t best) {
  const int token = token_of(best);
  if (team.rank == 0 && threadIdx.x == 0) p.tokens[row] = token < p.vocab ? token : 0;
}

// What a row's filters keep: tokens with keys up to a cutoff, which are all in the
// list, if there is one.
struct Kept {
  uint32_t cutoff = kInfinity;
  List list;
};

// Narrows what is kept to the k likeliest tokens, and those that tie with the last;
// false in threads that have nothing more to do.
template <int kThreads>
__device__ bool keep_top_k(const Row& row, uint32_t top_k, const Team& team,
                           Shared& shared, Kept* kept) {
  Bins bins = Bins::of_gaps(kept->cutoff);
  uint32_t target = top_k;
  // Of fewer tokens all are kept, and bins.last is where it was.
  const bool enough = narrow<kThreads>(row, team, shared, Count{}, &bins, &target);
  if (shared.bin.upto > kRoom) {
    if (enough) {
      kept->cutoff = settle<kThreads>(row, team, shared, Count{}, bins, target);
    }
    return true;
  }
  if (!gather<kThreads>(row, bins.last, team, shared, &kept->list)) return false;
  const auto wanted = [=](uint64_t) { return uint64_t{top_k}; };
  kept->cutoff = smallest(kept->list, kept->cutoff, Count{}, wanted, shared);
  return true;
}

__device__ inline uint64_t share_of(uint64_t all, float part) {
  const double share = ceil(double{part} * static_cast<double>(all));
  return max(uint64_t{1}, static_cast<uint64_t>(share));
}

// Narrows what is kept to the likeliest tokens that reach `top_p` of its probability.
template <int kThreads>
__device__ bool keep_top_p(const Row& row, float top_p, Team& team, Shared& shared,
                           Kept* kept) {
  if (kept->list.exists()) {
    const auto wanted = [=](uint64_t all) { return share_of(all, top_p); };
    kept->cutoff = smallest(kept->list, kept->cutoff, Mass{0x1p31f}, wanted, shared);
    return true;
  }
  uint64_t all = 0;
  row.each<kThreads>([&](uint32_t key, int) {
    if (key <= kept->cutoff) all += Mass{0x1p32f}(key);  // at most 2^32 - 1
  });
  all = combine<kThreads, Sum>(all, team, shared.exchange);
  // Scaled to 31 bits, so that no sum of weights overflows, however they are rounded.
  const int shift = 33 - __clzll(all);
  const Mass mass{ldexpf(0x1p32f, -shift)};
  const uint64_t wanted = share_of(all, top_p) >> shift;
  uint32_t target = max(uint32_t{1}, static_cast<uint32_t>(wanted));
  // Beyond it, all tokens together have less than what is not wanted.
  const float rest = static_cast<float>(all) * 0x1p-32f * (1.0f - top_p);
  const float far = logf(static_cast<float>(row.vocab) / rest) + 0.01f;
  Bins bins = Bins::of_gaps(min(kept->cutoff, __float_as_uint(far)));
  const uint32_t total = target;
  if (!narrow<kThreads>(row, team, shared, mass, &bins, &target)) return true;
  // None up to the bin's end weighs less than the last; 1 % is room for rounding.
  const double least = mass(bins.last);
  if (least < 1024 || 1.01 * shared.bin.upto > least * kRoom) {
    kept->cutoff = settle<kThreads>(row, team, shared, mass, bins, target);
    return true;
  }
  if (!gather<kThreads>(row, bins.last, team, shared, &kept->list)) return false;
  const auto same = [=](uint64_t) { return uint64_t{total}; };
  kept->cutoff = smallest(kept->list, kept->cutoff, mass, same, shared);
  return true;
}

// The best score among this thread's tokens; `limit` is the largest gap that is kept.
struct Search {
  uint2 key;
  float limit;
  volatile uint32_t* bound;  // of the block
  uint64_t best = 0;

  // Neighbouring tokens, from `first`.
  template <int kCount>
  __device__ void meet(const float (&gaps)[kCount], int first) {
    const float least = unordered(*bound), far = fminf(limit, kMaxNoise - least);
    bool any = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) any |= gaps[i] <= far;
    if (!any) return;
    uint2 hashes[kCount];
    threefry(key, first, hashes);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // Noise is below -log(uniform): far from winning, its logarithms are not needed.
      const float uniform = uniform_of(hashes[i]);
      if (!(gaps[i] <= far) || uniform > 1.001f * __expf(-(least + gaps[i]))) continue;
      const float score = gumbel(uniform) - gaps[i];
      best = max(best, ranked(score, first + i));
      if (score > least) atomicMax(const_cast<uint32_t*>(bound), ordered(score));
    }
  }
};

template <int kThreads>
__device__ uint64_t best_score(const Row& row, Search search) {
  for (int pack = threadIdx.x; pack < row.count; pack += kThreads) {
    const float4 gaps = row.packs[pack];
    search.meet<4>({gaps.x, gaps.y, gaps.z, gaps.w}, row.first + 4 * pack);
  }
  return search.best;
}

__device__ inline uint64_t best_score(const List& list, Search search) {
  list.each([&](int, uint32_t gap, int token) {
    search.meet<1>({__uint_as_float(gap)}, token);
  });
  return search.best;
}

#endif

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    take_highest(FDJAX_GRID_CONSTANT const Params p, const int blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __shared__ Exchange exchange;
  Team team = team_of(blocks);
  const int row = blockIdx.x / blocks;
  const Row logits(p, row, team, nullptr);
  const uint64_t top = highest<kThreads, false>(logits, team, exchange);
  write_token(p, row, team, top);
#endif
}

// Three blocks an SM, as their shared memory allows.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 3)
    draw_rows(FDJAX_GRID_CONSTANT const Params p, const int blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ float4 dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  Team team = team_of(blocks);
  const int at = blockIdx.x / blocks;
  shared.init<kThreads>();
  const Row row(p, at, team, dynamic + sizeof(Shared) / sizeof(float4));
  const uint64_t top = highest<kThreads, true>(row, team, shared.exchange);
  const float temperature = p.temperature[at];
  if (temperature == 0.0f || isinf(value_of(top))) {
    return write_token(p, at, team, top);
  }
  make_gaps<kThreads>(row, value_of(top), temperature);
  Kept kept;
  if (p.min_p != nullptr) kept.cutoff = __float_as_uint(fabsf(logf(p.min_p[at])));
  const int top_k = p.top_k == nullptr ? 0 : p.top_k[at];
  const float top_p = p.top_p == nullptr ? 1.0f : p.top_p[at];
  if (top_k > 0 && !keep_top_k<kThreads>(row, top_k, team, shared, &kept)) return;
  if (top_p < 1.0f && !keep_top_p<kThreads>(row, top_p, team, shared, &kept)) return;
  const uint2 key = fold_in(make_uint2(p.keys[2 * at], p.keys[2 * at + 1]),
                            static_cast<uint32_t>(p.steps[at]));
  const Search search{key, __uint_as_float(kept.cutoff), &shared.bound};
  if (kept.list.exists()) {
    write_token(p, at, team, Largest::warp(best_score(kept.list, search)));
    if (blocks > 1) cluster_wait();
    return;
  }
  const uint64_t best = best_score<kThreads>(row, search);
  write_token(p, at, team, combine<kThreads, Largest>(best, team, shared.exchange));
#endif
}

}  // namespace fdjax::draw

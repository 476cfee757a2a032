// draw on a GPU: a cluster of blocks a row.
//
//   logits --> highest --> gaps --> min-p, top-k, top-p: a cutoff --> noise --> token
//
// * The row is read once; each block keeps its share in shared memory (row.cuh).
// * A cutoff is found from sums over bins of gaps, which the blocks add up through
//   distributed shared memory (select.cuh). Where a cutoff is known to leave few
//   tokens, the first block gathers them and goes on alone.
// * Noise is made for the tokens that are kept, and can still win: its bits are those
// of
//   the definition, its largest value is known, and so is some token's score.
//
// A row's result depends on the row alone: sums are of integers, maxima have no order,
// and what is skipped cannot win.
#pragma once

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

// The row's highest logit and its token, in every thread of every block. Of a row
// without numbers above -inf the token is 0.
template <int kThreads, bool kKeeps>
__device__ uint64_t highest(const Row& row, const Team& team, Exchange& exchange) {
  if (team.blocks > 1) cluster_arrive();
  const uint64_t best = read<kThreads, kKeeps>(row);
  if (team.blocks > 1) cluster_wait();  // all blocks have started
  return largest<kThreads>(best, team, 0, exchange);
}

__device__ inline void write_token(const Params& p, int row, const Team& team,
                                   uint64_t best) {
  const int token = token_of(best);
  if (team.rank == 0 && threadIdx.x == 0) p.tokens[row] = token < p.vocab ? token : 0;
}

// What min-p, top-k and top-p ask for in a row.
struct Filters {
  uint32_t cutoff;  // of min-p
  int top_k;        // 0 keeps all
  float top_p;      // 1 keeps all

  __device__ Filters(const Params& p, int row)
      : cutoff(kInfinity),
        top_k(p.top_k == nullptr ? 0 : p.top_k[row]),
        top_p(p.top_p == nullptr ? 1.0f : p.top_p[row]) {
    if (p.min_p != nullptr) cutoff = __float_as_uint(fabsf(logf(p.min_p[row])));
  }
};

// The largest key that is kept; false in blocks that have nothing more to do.
template <int kThreads>
__device__ bool find_cutoff(const Filters& filters, Tokens* tokens, Team* team,
                            Shared& shared, uint32_t* cutoff) {
  *cutoff = filters.cutoff;
  uint64_t target;
  if (filters.top_k > 0) {
    Bins bins = Bins::of_gaps(*cutoff);
    const auto wanted = [&](uint64_t) { return static_cast<uint64_t>(filters.top_k); };
    if (narrow<kThreads, Count>(*tokens, *team, shared, wanted, &bins, &target)) {
      const bool few = shared.found.upto <= kRoom;
      if (few && team->blocks > 1 &&
          !gather<kThreads>(tokens, team, shared, bins.last)) {
        return false;
      }
      *cutoff = settle<kThreads, Count>(*tokens, *team, shared, bins, target);
    }
  }
  if (filters.top_p < 1.0f) {
    Bins bins = Bins::of_gaps(*cutoff);
    const auto wanted = [&](uint64_t all) {
      const double mass = ceil(double{filters.top_p} * static_cast<double>(all));
      return max(uint64_t{1}, static_cast<uint64_t>(mass));
    };
    if (narrow<kThreads, Mass>(*tokens, *team, shared, wanted, &bins, &target)) {
      // None up to the bin's end weighs less than the last; 1 % is room for rounding.
      const double least = Mass::of(bins.last);
      const double most = 1.01 * static_cast<double>(shared.found.upto);
      const bool few = least > 1024 && most <= least * kRoom;
      if (few && team->blocks > 1 &&
          !gather<kThreads>(tokens, team, shared, bins.last)) {
        return false;
      }
      *cutoff = settle<kThreads, Mass>(*tokens, *team, shared, bins, target);
    }
  }
  return true;
}

// The best score among this thread's tokens with keys up to `cutoff`.
template <int kThreads>
__device__ uint64_t best_score(const Tokens& tokens, uint32_t cutoff, uint2 key,
                               Shared& shared) {
  uint64_t best = 0;
  volatile uint32_t* bound = &shared.bound;
  tokens.each<kThreads>([&](uint32_t gap_key, int token) {
    if (gap_key > cutoff) return;
    const float gap = __uint_as_float(gap_key), least = unordered(*bound);
    if (kMaxNoise - gap < least) return;
    const float uniform = uniform_of(bits_of(key, token));
    // The noise is below -log(uniform): far from winning, its logarithms are not
    // needed.
    if (uniform > 1.001f * __expf(-(least + gap))) return;
    const float score = gumbel(uniform) - gap;
    best = max(best, ranked(score, token));
    if (score > least) atomicMax(&shared.bound, ordered(score));
  });
  return best;
}

#endif

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    take_highest(FDJAX_GRID_CONSTANT const Params p, const int blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __shared__ Exchange exchange;
  const Team team = team_of(blocks);
  const int row = blockIdx.x / blocks;
  const Row logits(p, row, team, nullptr);
  write_token(p, row, team, highest<kThreads, false>(logits, team, exchange));
#endif
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    draw_rows(FDJAX_GRID_CONSTANT const Params p, const int blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ float4 dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  Team team = team_of(blocks);
  const int row = blockIdx.x / blocks;
  shared.init<kThreads>();
  Tokens tokens{Row(p, row, team, dynamic + sizeof(Shared) / sizeof(float4))};
  const uint64_t top = highest<kThreads, true>(tokens.row, team, shared.exchange);
  const float temperature = p.temperature[row];
  if (temperature == 0.0f || isinf(value_of(top))) {
    return write_token(p, row, team, top);
  }
  make_gaps<kThreads>(tokens.row, value_of(top), temperature);
  uint32_t cutoff;
  const Filters filters(p, row);
  if (!find_cutoff<kThreads>(filters, &tokens, &team, shared, &cutoff)) return;
  const uint2 key = fold_in(make_uint2(p.keys[2 * row], p.keys[2 * row + 1]),
                            static_cast<uint32_t>(p.steps[row]));
  const uint64_t best = best_score<kThreads>(tokens, cutoff, key, shared);
  write_token(p, row, team, largest<kThreads>(best, team, 1, shared.exchange));
#endif
}

}  // namespace fdjax::draw

// What becomes of a tile of scores before they are weighed: soft cap, ALiBi and masks,
// one of them along a tree of drafts.
//
// A thread holds the rows lane / 4 and lane / 4 + 8 of each block of 16 rows, and of
// each 8 columns those at 2 * (lane % 4) and the next: so do mma.sync and wgmma. `G`
// says how many: kRowTiles blocks of 16 rows, kKeyTiles of 8 keys, kHeadDim.
#pragma once

#include "fdjax/mma.cuh"
#include "prefill_attention/tile.cuh"

namespace fdjax::prefill_attention {

template <typename G>
using Scores = float[G::kRowTiles][G::kKeyTiles][4];

// Scale, soft cap and ALiBi, to units of log 2; `first` is the position of key 0.
template <typename G>
__device__ void transform(const decode_attention::Params& p, const Query* queries,
                          int first, Scores<G>& scores) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int m = 0; m < G::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Query& query = queries[m * 16 + i / 2 * 8 + threadIdx.x % kLanes / 4];
        float score = p.scale * scores[m][n][i];
        if (p.soft_cap > 0.0f) {  // tanh(x) = 1 - 2 / (e^(2 x) + 1)
          score = p.soft_cap * (1.0f - __fdividef(2.0f, exp2_approx(score) + 1.0f));
        }
        const int key = first + n * 8 + column + i % 2;
        const float distance = static_cast<float>(key - query.position);
        scores[m][n][i] = score + query.slope * distance;
      }
}

// -inf for keys that a query does not see, or that are another piece's.
template <typename G>
__device__ void mask(const Query* queries, int first, const Work& work, int window,
                     Scores<G>& scores) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int row = 0; row < 2 * G::kRowTiles; ++row) {
    const int position = queries[row * 8 + threadIdx.x % kLanes / 4].position;
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int key = first + n * 8 + column + j, before = position - key;
        const bool seen = before >= 0 && before < window && key >= work.key_begin &&
                          key < work.key_end;
        if (!seen) scores[row / 2][n][row % 2 * 2 + j] = -INFINITY;
      }
  }
}

// Which of a tile's keys a query sees along its tree, a bit each; `first`: of the first
// key among the new tokens, `own` the query's.
template <typename G>
struct Seen {
  static constexpr int kWords = G::kTileKeys / 32;
  uint32_t words[kWords];

  __device__ Seen(const uint32_t* tree, int tree_words, int first, int own) {
    const auto word = [=](int i) {
      return i < 0 || i >= tree_words ? ~0u : tree[i];  // without a bit all are seen
    };
    const int from = first >> 5, bits = first & 31;
    uint32_t low = word(from);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t high = word(from + i + 1);
      words[i] = __funnelshift_r(low, high, bits);
      low = high;
      if ((own - first) >> 5 == i) words[i] |= 1u << ((own - first) & 31);
    }
  }

  __device__ bool has(int key) const { return words[key / 32] >> key % 32 & 1; }
};

// -inf for new tokens that are not a query's ancestors; `row`: the warp's first.
template <typename G>
__device__ void mask_tree(const Params& params, const Work& work, int row, int first,
                          Scores<G>& scores) {
  const States& states = params.states;
  const int start = states.starts[work.row];
  if (first + G::kTileKeys <= start) return;
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2 * G::kRowTiles; ++i) {
    const RowPlace place(params.attention, row + i * 8 + threadIdx.x % kLanes / 4);
    const int token = min(place.token, work.tokens - 1);
    const uint32_t* words =
        states.tree + int64_t{work.first + token} * states.tree_words;
    const Seen<G> seen(words, states.tree_words, first - start,
                       work.position + token - start);
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (!seen.has(n * 8 + column + j)) {
          scores[i / 2][n][i % 2 * 2 + j] = -INFINITY;
        }
      }
  }
}

// Soft cap, ALiBi and masks of the keys from position `first` on; `queries` is of the
// warp's first row, `row`. Returns what scores have to be multiplied by yet.
template <typename G>
__device__ float finish_scores(const Params& params, const Work& work,
                               const Query* queries, int row, int first,
                               Scores<G>& scores) {
  const decode_attention::Params& p = params.attention;
  const bool plain = p.soft_cap == 0.0f && p.slopes == nullptr;
  if (!plain) transform<G>(p, queries, first, scores);
  // Every query sees all of the keys, or not.
  const bool whole = first >= work.key_begin && first + G::kTileKeys <= work.key_end &&
                     first + G::kTileKeys <= work.position + 1 &&
                     first > work.position + work.tokens - 1 - p.window;
  if (!whole) mask<G>(queries, first, work, p.window, scores);
  if constexpr (G::kLeavesStates) {
    if (params.states.tree != nullptr) {
      mask_tree<G>(params, work, row, first, scores);
    }
  }
  return plain ? p.scale : 1.0f;
}

}  // namespace fdjax::prefill_attention

// What a warp does with a tile of scores, whichever instruction computed them: masks,
// weights, the running maximum, and the end.
//
// A thread holds the rows lane / 4 and lane / 4 + 8 of each block of 16 rows, and of
// each 8 columns those at 2 * (lane % 4) and the next: so do mma.sync and wgmma. `G`
// says how many: kRowTiles blocks of 16 rows, kKeyTiles of 8 keys, kHeadDim.
#pragma once

#include "decode_attention/bounds.cuh"
#include "fdjax/mma.cuh"
#include "prefill_attention/tile.cuh"

namespace fdjax::prefill_attention {

// What a thread keeps of its rows; row `2 * m + h` is lane / 4 + 8 * h of block m.
template <typename G>
struct Rows {
  static constexpr int kCount = 2 * G::kRowTiles;
  float out[G::kRowTiles][G::kHeadDim / 8][4];
  float highest[kCount];  // score, in units of log 2; or the unified maximum
  float total[kCount];    // of the weights that this thread has seen

  // `queries` is of the warp's first row. A sink is a token whose value is zero,
  // counted by one thread.
  __device__ explicit Rows(const Query* queries) {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      highest[i] = queries[i * 8 + lane / 4].sink;
      total[i] = highest[i] != -INFINITY && lane % 4 == 0 ? 1.0f : 0.0f;
    }
    clear();
  }

  // Of the unified scheme: `phi` is what all weights are relative to.
  __device__ Rows(const Query* queries, float phi) {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      highest[i] = phi;
      const float weight = exp2_approx(queries[i * 8 + lane / 4].sink - phi);
      total[i] = lane % 4 == 0 ? weight : 0.0f;
    }
    clear();
  }

 private:
  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < G::kRowTiles; ++m)
#pragma unroll
      for (int d = 0; d < G::kHeadDim / 8; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][d][i] = 0.0f;
  }
};

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

// Over the four threads that share a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// By what all that was weighted before must be multiplied, row by row.
template <typename G>
struct Factors {
  float of[Rows<G>::kCount];
  bool needed = false;  // some row of this thread's has a factor below 1
};

// Scores times `scale` become weights relative to the largest of their row so far.
// `rows.out` is left as it is.
template <typename G>
__device__ Factors<G> weigh(float scale, Rows<G>& rows, Scores<G>& scores) {
  Factors<G> factors;
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const int m = row / 2, h = row % 2 * 2;
    float tile = -INFINITY;
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n) {
      tile = fmaxf(tile, fmaxf(scores[m][n][h], scores[m][n][h + 1]));
    }
    const float before = rows.highest[row];
    const float highest = fmaxf(before, row_max(tile) * scale);
    const float base = highest == -INFINITY ? 0.0f : highest;  // nothing seen yet
    factors.of[row] = exp2_approx(before - base);
    factors.needed |= highest > before;
    rows.highest[row] = highest;
    float total = 0.0f;
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = scores[m][n][h + j];
        score = exp2_approx(fmaf(score, scale, -base));
        total += score;
      }
    rows.total[row] = fmaf(rows.total[row], factors.of[row], total);
  }
  return factors;
}

// Scores times `scale` become weights relative to the unified maximum: no largest
// score, no factor, nothing to rescale (FlashDecoding++Next, section III).
template <typename G>
__device__ void weigh_unified(float scale, float phi, Rows<G>& rows,
                              Scores<G>& scores) {
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = scores[row / 2][n][row % 2 * 2 + j];
        score = exp2_approx(fmaf(score, scale, -phi));
        rows.total[row] += score;
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

// Whether the unified maximum suits all of the warp's rows.
template <typename G>
__device__ bool suits(const decode_attention::Params& p, const Work& work,
                      const Query* queries, int first, const Rows<G>& rows) {
  const int lane = threadIdx.x % kLanes;
  bool all = true;
#pragma unroll
  for (int i = 0; i < Rows<G>::kCount; ++i) {
    const float total = row_sum(rows.total[i]);
    const int row = i * 8 + lane / 4;
    if (RowPlace(p, first + row).token >= work.tokens) continue;
    const Query& query = queries[row];
    const int begin = max(work.key_begin, query.position - p.window + 1);
    const int keys = min(work.key_end, query.position + 1) - begin;
    const int seen = max(keys, 0) + (query.sink != -INFINITY);
    all &= decode_attention::suits(p, total, seen);
  }
  return __all_sync(~0u, all);
}

// Makes what was weighted before relative to the maxima as they are now.
template <typename G>
__device__ void rescale(const Factors<G>& factors, Rows<G>& rows) {
  // After the first tiles few raise a maximum.
  if (!__any_sync(~0u, factors.needed)) return;
#pragma unroll
  for (int m = 0; m < G::kRowTiles; ++m)
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; ++d)
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.out[m][d][i] *= factors.of[2 * m + i / 2];
}

__device__ inline uint32_t packed(GpuFloats::bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline uint32_t packed(GpuFloats::float16, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Weights of 16 keys as the left operand of the second GEMM: `[m]` of block m, keys
// from `16 * k` on.
template <typename G>
__device__ void pack(const Scores<G>& weights, int m, int k, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* pair = &weights[m][2 * k + i / 2][i % 2 * 2];
    a[i] = packed(typename G::T{}, pair[0], pair[1]);
  }
}

// Among four neighbouring lanes, v[j] becomes lane j's v[lane].
__device__ inline void transpose(uint32_t (&v)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = distance == 1 ? 2 * i : i, high = low + distance;
      const uint32_t got = __shfl_xor_sync(~0u, upper ? v[low] : v[high], distance);
      if (upper) {
        v[low] = got;
      } else {
        v[high] = got;
      }
    }
  }
}

// Weighted values over the sum of the weights; `first` is the warp's first row. Four
// lanes have 16 bytes of a row: they trade, so that each writes 16 bytes.
template <typename G>
__device__ void store(const Params& params, const Work& work, int first,
                      const Rows<G>& rows) {
  using T = typename G::T;
  const decode_attention::Params& p = params.attention;
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const float total = row_sum(rows.total[row]);
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    const RowPlace place(p, first + row * 8 + lane / 4);
    T* out = static_cast<T*>(p.out) + place.offset(p, work);
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; d += 4) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &rows.out[row / 2][d + i][row % 2 * 2];
        v[i] = packed(T{}, pair[0] * factor, pair[1] * factor);
      }
      transpose(v);
      const int chunk = d + lane % 4;
      if (place.token < work.tokens && chunk < p.head_dim / 8) {
        reinterpret_cast<uint4*>(out)[chunk] = make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
  }
}

// Where a tile's piece leaves its sums, from row `row` on, and what they are relative
// to.
struct Record {
  float* sums;
  float2* about;

  __device__ Record(const Params& p, int record, int kv_head, int row) {
    const decode_attention::Params& a = p.attention;
    const int64_t rows = (int64_t{record} * a.kv_heads + kv_head) * kTileRows + row;
    const int64_t all = int64_t{p.num_records} * a.kv_heads * kTileRows;
    sums = p.records + rows * a.head_dim;
    about = reinterpret_cast<float2*>(p.records + all * a.head_dim) + rows;
  }
};

// What the rows have of a piece of their keys; `first` is the warp's first row.
template <typename G>
__device__ void store_piece(const Params& p, const Work& work, int first,
                            const Rows<G>& rows) {
  const int lane = threadIdx.x % kLanes, column = lane % 4 * 2;
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const float total = row_sum(rows.total[row]);
    const int place = first + row * 8 + lane / 4;
    const Record record(p, work.record, work.kv_head, place);
    if (RowPlace(p.attention, place).token >= work.tokens) continue;
    if (lane % 4 == 0) *record.about = {rows.highest[row], total};
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; ++d) {
      if (d * 8 >= p.attention.head_dim) continue;
      const float* pair = &rows.out[row / 2][d][row % 2 * 2];
      *reinterpret_cast<float2*>(record.sums + d * 8 + column) = {pair[0], pair[1]};
    }
  }
}

// The natural logarithm of what weights and their base, in units of log 2, stand for.
__device__ inline float log_sum_of(float base, float total) {
  constexpr float kLn2 = 0.693147181f;
  return total > 0.0f ? kLn2 * (base + log2f(total)) : -INFINITY;
}

// Weighted values over the sum of the weights, and its logarithm; `first` is the warp's
// first row.
template <typename G>
__device__ void store_state(const Params& params, const Work& work, int first,
                            const Rows<G>& rows) {
  const decode_attention::Params& p = params.attention;
  const int lane = threadIdx.x % kLanes, column = lane % 4 * 2;
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const float total = row_sum(rows.total[row]);
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    const RowPlace place(p, first + row * 8 + lane / 4);
    if (place.token >= work.tokens) continue;
    const int64_t offset = place.offset(p, work);
    float* const out = params.states.outputs + offset;
    if (lane % 4 == 0) {
      params.states.log_sums[offset / p.head_dim] =
          log_sum_of(rows.highest[row], total);
    }
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; ++d) {
      if (d * 8 >= p.head_dim) continue;
      const float* pair = &rows.out[row / 2][d][row % 2 * 2];
      *reinterpret_cast<float2*>(out + d * 8 + column) = {pair[0] * factor,
                                                          pair[1] * factor};
    }
  }
}

template <typename G>
__device__ void finish(const Params& p, const Work& work, int first,
                       const Rows<G>& rows) {
  if (work.record >= 0) {
    store_piece<G>(p, work, first, rows);
  } else if constexpr (G::kLeavesStates) {
    store_state<G>(p, work, first, rows);
  } else {
    store<G>(p, work, first, rows);
  }
}

}  // namespace fdjax::prefill_attention

// One warp, one tile of keys: scores, weights, weighted values.
//
// Queries are the rows of both products:
//     scores[16, 8 keys]  = queries[16, D] * keys^T[D, 8]
//     out[16, 8 dimensions] += weights[16, 16 keys] * values[16 keys, 8]
// A thread holds the rows lane / 4 and lane / 4 + 8 of each block of 16, and the
// columns 2 * (lane % 4) and the next: what it holds of the scores is what the second
// product wants of the weights.
#pragma once

#include "prefill_attention/tiles.cuh"

namespace fdjax::prefill_attention {

// What is the same for all keys of a row; in shared memory, where registers are short.
struct Query {
  int position;
  float slope;  // of ALiBi, in units of log 2
  float sink;   // its score, in units of log 2; -inf: none
};

// Of this thread's row: the block has as many threads as rows, or more.
__device__ inline void describe(const decode_attention::Params& p, const Tile& tile,
                                int kv_head, Query* queries) {
  using decode_attention::kLog2E;
  if (threadIdx.x >= kTileRows) return;
  const RowPlace place(p, threadIdx.x);
  const int head = kv_head * p.group + place.head;
  queries[threadIdx.x] = {
      .position = tile.position + min(place.token, tile.tokens - 1),
      .slope = p.slopes == nullptr ? 0.0f : kLog2E * p.slopes[head],
      .sink = p.sinks == nullptr ? -INFINITY : kLog2E * p.sinks[head]};
}

// What a thread keeps of its rows; row `2 * m + h` is lane / 4 + 8 * h of block m.
template <typename G>
struct Rows {
  static constexpr int kCount = 2 * G::kRowTiles;
  float out[G::kRowTiles][G::kHeadDim / 8][4];
  float highest[kCount];  // score, in units of log 2
  float total[kCount];    // of the weights that this thread has seen

  // `queries` is of the warp's first row.
  __device__ explicit Rows(const Query* queries) {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // A sink is a token of weight 1 relative to its own score, counted by one thread.
      highest[i] = queries[i * 8 + lane / 4].sink;
      total[i] = highest[i] != -INFINITY && lane % 4 == 0 ? 1.0f : 0.0f;
    }
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

// `queries` is of the warp's first row.
template <typename G>
__device__ void multiply_keys(uint32_t queries, uint32_t keys, Scores<G>& scores) {
  const int lane = threadIdx.x % kLanes;
  // The next chunks are one XOR away: rows lie at powers of two.
  queries += swizzled<G>(lane % 16, lane / 16);
  keys += swizzled<G>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int m = 0; m < G::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0f;
#pragma unroll 4  // all 8 of them spill 40 bytes
  for (int k = 0; k < G::kHeadDim / 16; ++k) {
    uint32_t a[G::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < G::kRowTiles; ++m) {
      load_matrices(a[m], (queries ^ k * 32) + m * 16 * G::kRowBytes);
    }
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; n += 2) {
      uint32_t b[4];
      load_matrices(b, (keys ^ k * 32) + n * 8 * G::kRowBytes);
#pragma unroll
      for (int m = 0; m < G::kRowTiles; ++m) {
        multiply<typename G::T>(scores[m][n], a[m], b[0], b[1]);
        multiply<typename G::T>(scores[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

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

// -inf for keys that a query does not see.
template <typename G>
__device__ void mask(const Query* queries, int first, int window, Scores<G>& scores) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int row = 0; row < 2 * G::kRowTiles; ++row) {
    const int position = queries[row * 8 + threadIdx.x % kLanes / 4].position;
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int before = position - (first + n * 8 + column + j);
        const bool seen = before >= 0 && before < window;
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

// Scores times `scale` become weights relative to the largest of their row so far; what
// was weighted before is made relative to it too.
template <typename G>
__device__ void weigh(float scale, Rows<G>& rows, Scores<G>& scores) {
  float factors[Rows<G>::kCount];
  bool raised = false;
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
    factors[row] = exp2_approx(before - base);
    raised |= highest > before;
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
    rows.total[row] = fmaf(rows.total[row], factors[row], total);
  }
  // After the first tiles few raise a maximum.
  if (!__any_sync(~0u, raised)) return;
#pragma unroll
  for (int m = 0; m < G::kRowTiles; ++m)
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; ++d)
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.out[m][d][i] *= factors[2 * m + i / 2];
}

__device__ inline uint32_t packed(GpuFloats::bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline uint32_t packed(GpuFloats::float16, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <typename G>
__device__ void multiply_values(uint32_t values, const Scores<G>& weights,
                                Rows<G>& rows) {
  const int lane = threadIdx.x % kLanes;
  values += swizzled<G>(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < G::kTileKeys / 16; ++k) {
    uint32_t a[G::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < G::kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &weights[m][2 * k + i / 2][i % 2 * 2];
        a[m][i] = packed(typename G::T{}, pair[0], pair[1]);
      }
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; d += 2) {
      uint32_t b[4];
      load_transposed(b, (values ^ d * 16) + k * 16 * G::kRowBytes);
#pragma unroll
      for (int m = 0; m < G::kRowTiles; ++m) {
        multiply<typename G::T>(rows.out[m][d], a[m], b[0], b[1]);
        multiply<typename G::T>(rows.out[m][d + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace fdjax::prefill_attention

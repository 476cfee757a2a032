// What a warp does with a tile of scores, whichever instruction computed them: weights,
// the running maximum or the unified one, and the weights as an operand. scores.cuh
// says what a thread holds.
#pragma once

#include "fdjax/mma.cuh"
#include "prefill_attention/scores.cuh"

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

// Whether the unified maximum suits a row. The sum of its weights is watched, not its
// scores: of `seen` weights relative to phi with the sum `total`, the largest score
// lies between phi + log2(total / seen) and phi + log2(total). Where both are within
// the bounds, so is it. Of a row that sees nothing nothing can be lost; a sum that is
// no number suits nobody.
__device__ inline bool suits(const decode_attention::Params& p, float total, int seen) {
  if (seen == 0) return true;
  const float sum = p.phi + __log2f(total);
  return sum < p.high && sum - __log2f(static_cast<float>(seen)) > p.low;
}

// Whether it suits all of the warp's rows.
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
    // A row may stand before position 0; its queries there see nothing.
    const int begin = max(work.key_begin, max(query.position, 0) - p.window + 1);
    const int keys = min(work.key_end, query.position + 1) - begin;
    const int seen = max(keys, 0) + (query.sink != -INFINITY);
    all &= suits(p, total, seen);
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

}  // namespace fdjax::prefill_attention

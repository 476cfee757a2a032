// One warp, one tile: scores, weights, weighted values.
//
// Tokens are the rows of both products and query heads their columns, so a group of up
// to 8 heads fills an m16n8k16 that queries as rows would leave half empty:
//     scores[16 tokens, 8 heads]  = keys[16, D] * queries^T[D, 8]
//     out[16 dimensions, 8 heads] += values^T[16, 16 tokens] * weights[16 tokens, 8]
// A thread holds the columns 2 * (lane % 4) and the next of each block of 8, and of the
// scores the tokens lane / 4 and lane / 4 + 8.
#pragma once

#include <climits>

#include "decode_attention/tiles.cuh"

namespace fdjax::decode_attention {

// What a warp keeps of the tokens it has seen.
template <typename G>
struct Partial {
  float out[G::kHeadDim / 16][G::kBlocks][4];
  float highest[G::kBlocks][2];  // largest score of a column
  float total[G::kBlocks][2];    // sum of the weights, of this thread's tokens

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < G::kHeadDim / 16; ++m)
#pragma unroll
      for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0.0f;
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        highest[n][j] = -INFINITY;
        total[n][j] = 0.0f;
      }
  }
};

// The maximum over the tokens of a tile: over the lanes of one column.
__device__ inline float column_max(float x) {
#pragma unroll
  for (int distance = 4; distance < kLanes; distance *= 2) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
  }
  return x;
}

__device__ inline float column_sum(float x) {
#pragma unroll
  for (int distance = 4; distance < kLanes; distance *= 2) {
    x += __shfl_xor_sync(~0u, x, distance);
  }
  return x;
}

// --- The two schemes -----------------------------------------------------------------

// FlashDecoding++Next, section III: weights relative to a constant. Nothing depends on
// another tile, lane, warp or block; the largest score is only watched, by one fmax.
struct Unified {
  template <typename G>
  __device__ static void weigh(const Params& p, float (&scores)[G::kBlocks][4],
                               Partial<G>& partial) {
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& highest = partial.highest[n][i % 2];
        highest = fmaxf(highest, scores[n][i]);
        scores[n][i] = exp2_approx(scores[n][i] - p.phi);
        partial.total[n][i % 2] += scores[n][i];
      }
  }

  // By how much a partial sum made with `highest` counts in one made with `overall`.
  __device__ static float factor(float, float) { return 1.0f; }
};

// FlashDecoding: weights relative to the largest score so far; a tile that raises it
// rescales everything before it, and partial sums of different maxima do not add.
struct Running {
  template <typename G>
  __device__ static void weigh(const Params&, float (&scores)[G::kBlocks][4],
                               Partial<G>& partial) {
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& highest = partial.highest[n][j];
        const float tile = column_max(fmaxf(scores[n][j], scores[n][j + 2]));
        const float raised = fmaxf(highest, tile);
        const float base = raised == -INFINITY ? 0.0f : raised;  // nothing seen yet
        const float scale = exp2_approx(highest - base);
        highest = raised;
        scores[n][j] = exp2_approx(scores[n][j] - base);
        scores[n][j + 2] = exp2_approx(scores[n][j + 2] - base);
        partial.total[n][j] =
            partial.total[n][j] * scale + scores[n][j] + scores[n][j + 2];
#pragma unroll
        for (int m = 0; m < G::kHeadDim / 16; ++m) {
          partial.out[m][n][j] *= scale;
          partial.out[m][n][j + 2] *= scale;
        }
      }
  }

  __device__ static float factor(float highest, float overall) {
    return highest == -INFINITY ? 0.0f : exp2_approx(highest - overall);
  }
};

// --- Scores --------------------------------------------------------------------------

// `keys` and `queries`: where this lane loads its row of the first matrices.
template <typename G>
__device__ void multiply_keys(uint32_t queries, uint32_t keys,
                              float (&scores)[G::kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
#pragma unroll
  for (int k = 0; k < G::kHeadDim / 16; ++k) {
    uint32_t a[4];
    load_matrices(a, keys + k * 32);
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n) {
      uint32_t b[2];
      load_matrices(b, queries + n * 8 * G::kRowBytes + k * 32);
      multiply<typename G::T>(scores[n], a, b[0], b[1]);
    }
  }
}

// scale, soft cap and ALiBi; -inf for tokens that the query does not see.
template <typename G>
__device__ void transform(const Params& p, const Work& work, int first,
                          const float (&slopes)[G::kBlocks][2],
                          float (&scores)[G::kBlocks][4]) {
  constexpr float kLog2E = 1.44269504f;
  const int lane = threadIdx.x % kLanes;
  const int token = first + lane / 4;
  if (p.soft_cap > 0.0f) {  // tanh(x) = 1 - 2 / (e^(2 x) + 1); tanh.approx is too coarse
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float e = exp2_approx(2 * kLog2E * p.scale * scores[n][i]);
        scores[n][i] = p.soft_cap * (1.0f - __fdividef(2.0f, e + 1.0f));
      }
  }
  const float scale = p.soft_cap > 0.0f ? kLog2E : kLog2E * p.scale;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int t = token + (i / 2) * 8;
    const bool seen = t >= work.begin && t < work.end;
    const float distance = static_cast<float>(t - (work.end - 1));
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float score = scores[n][i + j] * scale + slopes[n][j] * distance;
        scores[n][i + j] = seen ? score : -INFINITY;
      }
  }
}

// ALiBi's slopes of this thread's columns, times log2(e); 0 without.
template <typename G>
__device__ void load_slopes(const Params& p, int kv_head,
                            float (&slopes)[G::kBlocks][2]) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = n * 8 + lane % 4 * 2 + j;
      const bool some = p.slopes != nullptr && column < p.group;
      slopes[n][j] = some ? 1.44269504f * p.slopes[kv_head * p.group + column] : 0.0f;
    }
}

// --- Weighted values -----------------------------------------------------------------

// bfloat16 has float32's range: weights are rounded to it and turned, in registers, from
// tokens as rows to tokens as columns.
template <typename G>
__device__ void multiply_values(GpuFloats::bfloat16, uint32_t values,
                                const float (&weights)[G::kBlocks][4],
                                Partial<G>& partial) {
  uint32_t b[G::kBlocks][2];
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(weights[n][2 * i], weights[n][2 * i + 1]);
      b[n][i] = transpose(reinterpret_cast<const uint32_t&>(pair));
    }
#pragma unroll
  for (int m = 0; m < G::kHeadDim / 16; ++m) {
    uint32_t a[4];
    load_transposed(a, values + m * 32);
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n) {
      multiply<GpuFloats::bfloat16>(partial.out[m][n], a, b[n][0], b[n][1]);
    }
  }
}

// A weight of `token` (0 to 7) and column lane / 4, from the thread that holds it.
__device__ inline float weight_of(float even, float odd, int token) {
  const int lane = threadIdx.x % kLanes;
  const int source = token * 4 + lane / 8;
  const float x = __shfl_sync(~0u, even, source), y = __shfl_sync(~0u, odd, source);
  return lane / 4 % 2 == 0 ? x : y;
}

// float16 does not hold exp(score - phi) over the range of the bounds; TF32 does, with
// the same mantissa. A product's sum may take tokens in any order, so the pair of tokens
// in a register becomes columns lane % 4 and lane % 4 + 4, and nothing moves.
template <typename G>
__device__ void multiply_values(GpuFloats::float16, uint32_t values,
                                const float (&weights)[G::kBlocks][4],
                                Partial<G>& partial) {
  const int lane = threadIdx.x % kLanes;
  uint32_t b[G::kBlocks][4];
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2 * 2;
      b[n][i] = to_tf32(weight_of(weights[n][half], weights[n][half + 1],
                                  lane % 4 * 2 + i % 2));
    }
#pragma unroll
  for (int m = 0; m < G::kHeadDim / 16; ++m) {
    uint32_t pairs[4];
    load_transposed(pairs, values + m * 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto low = reinterpret_cast<const __half2&>(pairs[2 * half]);
      const auto high = reinterpret_cast<const __half2&>(pairs[2 * half + 1]);
      const uint32_t a[4] = {
          __float_as_uint(__low2float(low)), __float_as_uint(__low2float(high)),
          __float_as_uint(__high2float(low)), __float_as_uint(__high2float(high))};
#pragma unroll
      for (int n = 0; n < G::kBlocks; ++n) {
        multiply_tf32(partial.out[m][n], a, b[n][2 * half], b[n][2 * half + 1]);
      }
    }
  }
}

// --- A warp's tokens -----------------------------------------------------------------

// Zeros for the values of tokens that the query does not see: their weight is zero, but
// nothing was copied there, and 0 * NaN is NaN.
template <typename G>
__device__ void clear_unseen(const Work& work, int first, uint32_t values) {
  const int lane = threadIdx.x % kLanes;
  for (int i = lane; i < kTileTokens * G::kChunks; i += kLanes) {
    const int token = i / G::kChunks, chunk = i % G::kChunks;
    if (first + token < work.begin || first + token >= work.end) {
      store_zeros(values + token * work.row_bytes + chunk * 16);
    }
  }
  fence_for_copies();
  __syncwarp();
}

// Attends to this warp's tiles of the stages that the producer fills.
template <typename Scheme, typename G>
__device__ void attend(const Params& p, const Work& work, const Ring<G>& ring, int used,
                       uint32_t queries, Partial<G>& partial) {
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int head = warp / work.warps_per_head, member = warp % work.warps_per_head;
  // Where matrices begin: keys with tokens as rows; values with tokens as rows, turned.
  const uint32_t to_tile =
      member * kTileTokens * work.row_bytes + head * G::kHeadBytes;
  const uint32_t to_values = to_tile + work.warps_per_head * kTileTokens * work.row_bytes;
  const uint32_t key_row = to_tile + lane % 16 * work.row_bytes + lane / 16 * 16;
  const uint32_t value_row =
      to_values + (lane % 8 + lane / 16 * 8) * work.row_bytes + lane / 8 % 2 * 16;
  queries += head * G::kQueryBytes + lane % 8 * G::kRowBytes + lane / 8 % 2 * 16;
  float slopes[G::kBlocks][2];
  load_slopes<G>(p, work.kv_head + head, slopes);
  partial.clear();
  for (int n = 0; n < work.stages; ++n, ++used) {
    const uint32_t stage = ring.stage(used);
    const int tile = work.first + n * work.warps_per_head + member;
    const int first = tile * kTileTokens;
    barrier_wait(ring.full_at(used), Ring<G>::phase(used));
#ifndef FD_NOCOMPUTE
    if (tile < work.last) {
      if (first < work.begin || first + kTileTokens > work.end) {
        clear_unseen<G>(work, first, stage + to_values);
      }
      float scores[G::kBlocks][4];
      multiply_keys<G>(queries, stage + key_row, scores);
      transform<G>(p, work, first, slopes, scores);
      Scheme::template weigh<G>(p, scores, partial);
      multiply_values<G>(typename G::T{}, stage + value_row, scores, partial);
    }
#endif
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty_at(used));
  }
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      partial.total[n][j] = column_sum(partial.total[n][j]);
      partial.highest[n][j] = column_max(partial.highest[n][j]);
    }
}

}  // namespace fdjax::decode_attention

// One warp, one tile: scores, weights, weighted values.
//
// Tokens are the rows of both GEMMs and query heads their columns, so a group of up
// to 8 heads fills an m16n8k16 that queries as rows would leave half empty:
//     scores[16 tokens, 8 heads]  = keys[16, D] * queries^T[D, 8]
//     out[16 dimensions, 8 heads] += values^T[16, 16 tokens] * weights[16 tokens, 8]
// A thread holds the columns 2 * (lane % 4) and the next of each block of 8, and of the
// scores the tokens lane / 4 and lane / 4 + 8.
#pragma once

#include <type_traits>

#include "decode_attention/ptx.cuh"
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

// 2^x as the GEMM with the values will have it: what is rounded is also summed, so
// that the weights of a row add up to one.
template <typename T>
__device__ float weight(float x) {
  if constexpr (std::is_same_v<T, GpuFloats::bfloat16>) {
    return __bfloat162float(__float2bfloat16_rn(exp2_approx(x)));
  } else {
    return __uint_as_float(to_tf32(exp2_approx(x)));
  }
}

// --- The two schemes -----------------------------------------------------------------

// FlashDecoding++Next, section III: weights relative to a constant. Nothing depends on
// another tile, lane, warp or block; the largest score is only watched, by one fmax.
template <typename G>
__device__ void weigh_unified(float phi, float (&scores)[G::kBlocks][4],
                              Partial<G>& partial) {
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& highest = partial.highest[n][i % 2];
      highest = fmaxf(highest, scores[n][i]);
      scores[n][i] = weight<typename G::T>(scores[n][i] - phi);
      partial.total[n][i % 2] += scores[n][i];
    }
}

// FlashDecoding: weights relative to the largest score so far; a tile that raises it
// rescales everything before it, and partial sums of different maxima do not add.
template <typename G>
__device__ void weigh_running(float (&scores)[G::kBlocks][4], Partial<G>& partial) {
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
      scores[n][j] = weight<typename G::T>(scores[n][j] - base);
      scores[n][j + 2] = weight<typename G::T>(scores[n][j + 2] - base);
      partial.total[n][j] =
          partial.total[n][j] * scale + scores[n][j] + scores[n][j + 2];
#pragma unroll
      for (int m = 0; m < G::kHeadDim / 16; ++m) {
        partial.out[m][n][j] *= scale;
        partial.out[m][n][j + 2] *= scale;
      }
    }
}

// One of the two, for what is done once a row. A value and not a type: only the loop
// over the tiles is compiled for each (a branch in it cost 3 % at 1 x 32768).
struct Scheme {
  bool unified;

  // By how much a partial sum made with `highest` counts in one made with `overall`.
  // Without a branch, so that loops over partial sums load several at once.
  __device__ float factor(float highest, float overall) const {
    const float factor = exp2_approx(unified ? 0.0f : highest - overall);
    return highest == -INFINITY ? 0.0f : factor;
  }

  // The weight of one score beside a sum whose largest score is `overall`.
  __device__ float weight_of(const Params& p, float score, float overall) const {
    return exp2_approx(score - (unified ? p.phi : overall));
  }
};

// --- Scores --------------------------------------------------------------------------

template <typename G>
__device__ void multiply_keys(uint32_t queries, uint32_t keys,
                              float (&scores)[G::kBlocks][4]) {
  const int lane = threadIdx.x % kLanes;
  // Rows and chunks of this lane in the first matrices; the next ones are two chunks
  // on, which is one XOR since lines lie at powers of two.
  keys += at_tile(lane % 16, lane / 16);
  queries += swizzled<G>(lane % 8, lane / 8 % 2);
  // Two chains of dependent MMAs at least: with one block of columns, half each.
  constexpr int kChains = G::kBlocks == 1 ? 2 : 1;
  float sums[kChains][G::kBlocks][4] = {};
#pragma unroll
  for (int k = 0; k < G::kHeadDim / 16; ++k) {
    uint32_t a[4];
    load_matrices(a, at_step(keys, k));
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n) {
      uint32_t b[2];
      load_matrices(b, (queries ^ k * 32) + n * 8 * G::kRowBytes);
      multiply<typename G::T>(sums[k % kChains][n], a, b[0], b[1]);
    }
  }
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = sums[0][n][i];
      if (kChains == 2) scores[n][i] += sums[kChains - 1][n][i];
    }
}

// Scale, soft cap and ALiBi; -inf for tokens that the query does not see. Scores are in
// units of log 2 (params.h), so that their exponential is one exp2.
template <typename G>
__device__ void transform(const Params& p, const Work& work, int first,
                          const float (&slopes)[G::kBlocks][2],
                          float (&scores)[G::kBlocks][4]) {
  const int lane = threadIdx.x % kLanes;
  float scale = p.scale;
  if (p.soft_cap >
      0.0f) {  // tanh(x) = 1 - 2 / (e^(2 x) + 1); tanh.approx is too coarse
    scale = 1.0f;
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float e = exp2_approx(p.scale * scores[n][i]);
        scores[n][i] = p.soft_cap * (1.0f - __fdividef(2.0f, e + 1.0f));
      }
  }
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int token = first + lane / 4 + i * 4;
    const bool seen = token >= work.begin && token < work.end;
    const float distance = static_cast<float>(token - (work.end - 1));
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
      slopes[n][j] = some ? kLog2E * p.slopes[kv_head * p.group + column] : 0.0f;
    }
}

// --- Weighted values -----------------------------------------------------------------

// bfloat16 has float32's range: weights are rounded to it and turned, in registers,
// from tokens as rows to tokens as columns.
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
    load_transposed(a, at_step(values, m));
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
// the same mantissa. A GEMM's sum may take tokens in any order, so the pair of
// tokens in a register becomes columns lane % 4 and lane % 4 + 4, and nothing moves.
template <typename G>
__device__ void multiply_values(GpuFloats::float16, uint32_t values,
                                const float (&weights)[G::kBlocks][4],
                                Partial<G>& partial) {
  const int lane = threadIdx.x % kLanes;
  // One block of columns and 8 tokens at a time: registers are what is short here.
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float even = weights[n][2 * half], odd = weights[n][2 * half + 1];
      const uint32_t b0 = __float_as_uint(weight_of(even, odd, lane % 4 * 2));
      const uint32_t b1 = __float_as_uint(weight_of(even, odd, lane % 4 * 2 + 1));
#pragma unroll
      for (int m = 0; m < G::kHeadDim / 16; ++m) {
        uint32_t pairs[2];
        load_transposed(pairs, at_step(values + half * 8 * kLineBytes, m));
        const auto low = reinterpret_cast<const __half2&>(pairs[0]);
        const auto high = reinterpret_cast<const __half2&>(pairs[1]);
        const uint32_t a[4] = {
            __float_as_uint(__low2float(low)), __float_as_uint(__low2float(high)),
            __float_as_uint(__high2float(low)), __float_as_uint(__high2float(high))};
        multiply_tf32(partial.out[m][n], a, b0, b1);
      }
    }
}

// --- A warp's tokens -----------------------------------------------------------------

// Puts the newest token's key or value over what its slot held.
template <typename G>
__device__ void put_newest(uint32_t half_tile, int token, uint32_t vector) {
  if (const int chunk = threadIdx.x % kLanes; chunk < G::kChunks) {
    store_shared(half_tile + at_tile(token % kTileTokens, chunk),
                 load_shared(vector + chunk * 16));
  }
  __syncwarp();
}

// Attends to the tiles of `loader`, whose first halves are on their way. `newest`: key
// and value of the row's last token if they may not be in their slot yet, or 0.
template <bool kUnified, typename G, typename Loader>
__device__ void attend(const Params& p, const Work& work, Loader& loader,
                       uint32_t queries, uint32_t newest, Partial<G>& partial) {
  const int lane = threadIdx.x % kLanes;
  // For load_transposed: tokens as rows, dimensions as columns.
  const uint32_t values = at_tile(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  float slopes[G::kBlocks][2];
  load_slopes<G>(p, work.kv_head, slopes);
  partial.clear();
  int place = 0;
  for (int tile = 0; tile < work.tiles; ++tile) {
    const bool replaces = newest != 0 && work.has_newest(tile);
    float scores[G::kBlocks][4];
    loader.wait(place);
    if (replaces) put_newest<G>(loader.at(place), work.end - 1, newest);
    multiply_keys<G>(queries, loader.at(place), scores);
    __syncwarp();  // the keys are read; others may come
    loader.fetch(place);
    place = place + 1 == G::kHalves ? 0 : place + 1;
    const int first = work.token(tile);
    transform<G>(p, work, first, slopes, scores);
    if constexpr (kUnified) {
      weigh_unified(p.phi, scores, partial);
    } else {
      weigh_running(scores, partial);
    }
    loader.wait(place);
    loader.clear_unseen(loader.at(place), first);
    if (replaces) put_newest<G>(loader.at(place), work.end - 1, newest + G::kRowBytes);
    multiply_values<G>(typename G::T{}, loader.at(place) + values, scores, partial);
    __syncwarp();
    loader.fetch(place);
    place = place + 1 == G::kHalves ? 0 : place + 1;
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

// From the warps' partial results to the output: first within a block, then within a
// cluster, whose blocks hold the splits of the same row and heads.
//
// Nothing goes through device memory, nothing is counted and no order is left to chance:
// a block sums its warps in shared memory, sends each block of the cluster the part of
// the result that is that block's to finish, and sums what it was sent. All of it lies
// where the rings were.
#pragma once

#include "decode_attention/attend.cuh"

namespace fdjax::decode_attention {

struct Column {  // a query head
  float highest, total;
};

// Where things lie in the memory of the rings. A unit is 4 dimensions of a query head.
template <typename G>
struct Exchange {
  float* partials;   // [warps, columns, kPartialStride]
  Column* warps;     // [warps, columns]
  Column* received;  // [splits, columns of the block]
  float4* sums;      // [splits, units of a block of the cluster]
  int columns;       // of the block: its heads' groups, without padding
  int units, share;  // of all its columns; of one block of the cluster

  __device__ Exchange(const Params& p, char* memory, int splits) {
    columns = p.head_count * p.group;
    units = columns * (G::kHeadDim / 4);
    share = (units + splits - 1) / splits;
    partials = reinterpret_cast<float*>(memory);
    constexpr int kPartials = G::kWarps * G::kColumns * G::kPartialStride;
    sums = reinterpret_cast<float4*>(partials + kPartials);
    warps = reinterpret_cast<Column*>(sums + splits * share);
    received = warps + G::kWarps * G::kColumns;
  }

  static constexpr int bytes(int head_count, int group, int splits) {
    const int columns = head_count * group;
    const int units = columns * (G::kHeadDim / 4);
    const int share = (units + splits - 1) / splits;
    return G::kWarps * G::kColumns * (G::kPartialStride * 4 + 8) + splits * share * 16 +
           splits * columns * 8;
  }
};

// kPartialStride spreads the 32 threads of a store over all banks.
template <typename G>
__device__ void store_partial(const Exchange<G>& e, const Partial<G>& partial) {
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  float* out = e.partials + warp * G::kColumns * G::kPartialStride;
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = n * 8 + lane % 4 * 2 + j;
#pragma unroll
      for (int m = 0; m < G::kHeadDim / 16; ++m) {
        float* at = out + column * G::kPartialStride + m * 16 + lane / 4;
        at[0] = partial.out[m][n][j];
        at[8] = partial.out[m][n][j + 2];
      }
      if (lane < 4) {
        e.warps[warp * G::kColumns + column] = {partial.highest[n][j],
                                                partial.total[n][j]};
      }
    }
}

__device__ inline void add_scaled(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor;
  sum.y += x.y * factor;
  sum.z += x.z * factor;
  sum.w += x.w * factor;
}

// One column over the warps of its head.
template <typename Scheme, typename G>
__device__ Column sum_warps(const Params& p, const Exchange<G>& e, int column) {
  const int warps_per_head = G::kWarps / p.head_count;
  const int first = column / p.group * warps_per_head, g = column % p.group;
  const Column* of_warp = e.warps + first * G::kColumns + g;
  Column sum{-INFINITY, 0.0f};
  for (int w = 0; w < warps_per_head; ++w) {
    sum.highest = fmaxf(sum.highest, of_warp[w * G::kColumns].highest);
  }
  for (int w = 0; w < warps_per_head; ++w) {
    const Column c = of_warp[w * G::kColumns];
    sum.total += c.total * Scheme::factor(c.highest, sum.highest);
  }
  return sum;
}

// Sends every block of the cluster its share of this block's sums, and all columns.
template <typename Scheme, typename G>
__device__ void send(const Params& p, const Exchange<G>& e, int split, int splits) {
  const int warps_per_head = G::kWarps / p.head_count;
  for (int i = threadIdx.x; i < splits * e.columns; i += G::kThreads) {
    const int to = i / e.columns, column = i % e.columns;
    const Column sum = sum_warps<Scheme>(p, e, column);
    *in_block(e.received + split * e.columns + column, to) = sum;
  }
  for (int unit = threadIdx.x; unit < e.units; unit += G::kThreads) {
    const int column = unit / (G::kHeadDim / 4), part = unit % (G::kHeadDim / 4);
    const int first = column / p.group * warps_per_head, g = column % p.group;
    const Column all = sum_warps<Scheme>(p, e, column);
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
    for (int w = first; w < first + warps_per_head; ++w) {
      const int at = w * G::kColumns + g;
      const float* source = e.partials + at * G::kPartialStride + part * 4;
      add_scaled(sum, *reinterpret_cast<const float4*>(source),
                 Scheme::factor(e.warps[at].highest, all.highest));
    }
    const int to = unit / e.share;
    *in_block(e.sums + split * e.share + unit % e.share, to) = sum;
  }
}

// One column over the splits.
template <typename Scheme, typename G>
__device__ Column sum_splits(const Exchange<G>& e, int column, int splits) {
  Column sum{-INFINITY, 0.0f};
  for (int s = 0; s < splits; ++s) {
    sum.highest = fmaxf(sum.highest, e.received[s * e.columns + column].highest);
  }
  for (int s = 0; s < splits; ++s) {
    const Column c = e.received[s * e.columns + column];
    sum.total += c.total * Scheme::factor(c.highest, sum.highest);
  }
  return sum;
}

__device__ inline uint2 pack(GpuFloats::bfloat16, const float4& x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  return {reinterpret_cast<const uint32_t&>(low),
          reinterpret_cast<const uint32_t&>(high)};
}

__device__ inline uint2 pack(GpuFloats::float16, const float4& x) {
  const __half2 low = __floats2half2_rn(x.x, x.y);
  const __half2 high = __floats2half2_rn(x.z, x.w);
  return {reinterpret_cast<const uint32_t&>(low),
          reinterpret_cast<const uint32_t&>(high)};
}

// Writes this block's share of the columns for which `wanted(column)`. `all` holds every
// column summed over the splits.
template <typename Scheme, typename G, typename Wanted>
__device__ void finish(const Params& p, const Exchange<G>& e, const Column* all,
                       int split, int splits, Wanted wanted) {
  const int64_t first_head =
      (int64_t{blockIdx.z} * p.kv_heads + blockIdx.y * p.head_count) * p.group;
  uint2* out = static_cast<uint2*>(p.out) + first_head * (G::kHeadDim / 4);
  for (int i = threadIdx.x; i < e.share; i += G::kThreads) {
    const int unit = split * e.share + i;
    if (unit >= e.units) return;
    const int column = unit / (G::kHeadDim / 4);
    if (!wanted(column)) continue;
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int s = 0; s < splits; ++s) {
      const float highest = e.received[s * e.columns + column].highest;
      add_scaled(sum, e.sums[s * e.share + i],
                 Scheme::factor(highest, all[column].highest));
    }
    const float inverse = all[column].total > 0.0f ? 1.0f / all[column].total : 0.0f;
    float4 result{0.0f, 0.0f, 0.0f, 0.0f};
    add_scaled(result, sum, inverse);
    out[unit] = pack(typename G::T{}, result);
  }
}

}  // namespace fdjax::decode_attention

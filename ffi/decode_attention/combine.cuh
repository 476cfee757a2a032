// From the warps' partial results to the output: first within a block, then within a
// cluster, whose blocks hold the splits of the same row and heads.
//
// Nothing goes through device memory, nothing is counted and no order is left to
// chance: a block sums its warps in shared memory, sends each block of the cluster the
// part of the result that is that block's to finish, and sums what it was sent. All of
// it lies where the rings were.
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

  __device__ Exchange(const Params& p, const Block& block, char* memory) {
    columns = block.heads * p.group;
    units = columns * (G::kHeadDim / 4);
    share = (units + block.splits - 1) / block.splits;
    partials = reinterpret_cast<float*>(memory);
    const int of_warps = block.warps * G::kColumns;
    sums = reinterpret_cast<float4*>(partials + of_warps * G::kPartialStride);
    warps = reinterpret_cast<Column*>(sums + block.splits * share);
    received = warps + of_warps;
  }

  static constexpr int bytes(int warps, int heads, int group, int splits) {
    const int columns = heads * group;
    const int units = columns * (G::kHeadDim / 4);
    const int share = (units + splits - 1) / splits;
    return warps * G::kColumns * (G::kPartialStride * 4 + 8) + splits * share * 16 +
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

// One column of a group over the warps of its head, which begin with `first`.
template <typename G>
__device__ Column sum_warps(Scheme scheme, const Exchange<G>& e, int first, int warps,
                            int column) {
  const Column* of_warp = e.warps + first * G::kColumns + column;
  Column sum{-INFINITY, 0.0f};
  for (int w = 0; w < warps; ++w) {
    sum.highest = fmaxf(sum.highest, of_warp[w * G::kColumns].highest);
  }
  for (int w = 0; w < warps; ++w) {
    const Column c = of_warp[w * G::kColumns];
    sum.total += c.total * scheme.factor(c.highest, sum.highest);
  }
  return sum;
}

// Sends every block of the cluster its share of this block's sums, and all columns.
template <typename G>
__device__ void send(const Params& p, const Block& block, Scheme scheme,
                     const Exchange<G>& e) {
  const int warps = block.warps_per_head;
  for (int i = threadIdx.x; i < block.splits * e.columns; i += blockDim.x) {
    const int to = i / e.columns, column = i % e.columns;
    const Column sum =
        sum_warps(scheme, e, column / p.group * warps, warps, column % p.group);
    *in_block(e.received + block.split * e.columns + column, to) = sum;
  }
  for (int unit = threadIdx.x; unit < e.units; unit += blockDim.x) {
    const int column = unit / (G::kHeadDim / 4), part = unit % (G::kHeadDim / 4);
    const int first = column / p.group * warps, g = column % p.group;
    const Column all = sum_warps(scheme, e, first, warps, g);
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
    for (int w = first; w < first + warps; ++w) {
      const int at = w * G::kColumns + g;
      const float* source = e.partials + at * G::kPartialStride + part * 4;
      add_scaled(sum, *reinterpret_cast<const float4*>(source),
                 scheme.factor(e.warps[at].highest, all.highest));
    }
    const int to = unit / e.share;
    *in_block(e.sums + block.split * e.share + unit % e.share, to) = sum;
  }
}

// One column over the splits.
template <typename G>
__device__ Column sum_splits(Scheme scheme, const Exchange<G>& e, int column,
                             int splits) {
  Column sum{-INFINITY, 0.0f};
  for (int s = 0; s < splits; ++s) {
    sum.highest = fmaxf(sum.highest, e.received[s * e.columns + column].highest);
  }
  for (int s = 0; s < splits; ++s) {
    const Column c = e.received[s * e.columns + column];
    sum.total += c.total * scheme.factor(c.highest, sum.highest);
  }
  return sum;
}

// One of the block's columns over the splits, and its sink.
template <typename G>
__device__ Column sum_all(const Params& p, const Block& block, Scheme scheme,
                          const Exchange<G>& e, int column) {
  const Column sum = sum_splits(scheme, e, column, block.splits);
  if (p.sinks == nullptr) return sum;
  const float sink = kLog2E * p.sinks[block.kv_head * p.group + column];
  const float highest = fmaxf(sum.highest, sink);
  return {highest, sum.total * scheme.factor(sum.highest, highest) +
                       scheme.weight_of(p, sink, highest)};
}

__device__ inline uint2 pack(GpuFloats::bfloat16, const float4& x, float factor) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x * factor, x.y * factor);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z * factor, x.w * factor);
  return {reinterpret_cast<const uint32_t&>(low),
          reinterpret_cast<const uint32_t&>(high)};
}

__device__ inline uint2 pack(GpuFloats::float16, const float4& x, float factor) {
  const __half2 low = __floats2half2_rn(x.x * factor, x.y * factor);
  const __half2 high = __floats2half2_rn(x.z * factor, x.w * factor);
  return {reinterpret_cast<const uint32_t&>(low),
          reinterpret_cast<const uint32_t&>(high)};
}

// Writes this block's share of the columns that are `ready`. `all` holds every column
// summed over the splits.
template <typename G>
__device__ void finish(const Params& p, const Block& block, Scheme scheme,
                       const Exchange<G>& e, const Column* all, const bool* ready) {
  constexpr int kUnits = G::kHeadDim / 4;  // of a query head
  uint2* out = static_cast<uint2*>(p.out) + block.query_head(p) * kUnits;
  for (int i = threadIdx.x; i < e.share; i += blockDim.x) {
    const int unit = block.split * e.share + i;
    if (unit >= e.units) return;
    const int column = unit / kUnits;
    if (!ready[column]) continue;
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int s = 0; s < block.splits; ++s) {
      const float highest = e.received[s * e.columns + column].highest;
      add_scaled(sum, e.sums[s * e.share + i],
                 scheme.factor(highest, all[column].highest));
    }
    const float inverse = all[column].total > 0.0f ? 1.0f / all[column].total : 0.0f;
    out[unit] = pack(typename G::T{}, sum, inverse);
  }
}

}  // namespace fdjax::decode_attention

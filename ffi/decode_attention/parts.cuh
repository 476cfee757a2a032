// Several clusters for the tokens of a row: what each leaves, and the kernel that adds.
//
// A cluster needs room in one group of some 16 multiprocessors. Where a row's heads are
// few and its tokens many, clusters of 8 would leave half of an H200 idle (1 x 32,768),
// or not fit at once; several clusters of 2 fit everywhere. Their sums meet in device
// memory, and a second, small kernel adds them.
#pragma once

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/sums.cuh"
#include "fdjax/gpu.h"
#include "fdjax/launch.h"
#include "fdjax/mma.cuh"
#include "fdjax/pdl.cuh"

namespace fdjax::decode_attention {

// What a part leaves of a query head, kUnits float4 of sums behind one that says
//   x: the number that its exponents are relative to,
//   y: the sum of its weights,
//   z: 1 if it was computed again.
template <int kUnits>
__device__ float4* part_of(const Params& p, int64_t query_head, int part) {
  return reinterpret_cast<float4*>(p.parts) +
         ((query_head << p.part_bits) + part) * (1 + kUnits);
}

inline constexpr int kCombineThreads = 128;

// Grid: key/value heads, rows.
template <typename T, int kUnits>
__global__ void __launch_bounds__(kCombineThreads)
    combine_parts(FDJAX_GRID_CONSTANT const Params p) {
  constexpr int kMaxParts = 1 << kMaxPartBits;
  const int parts = 1 << p.part_bits;
  pdl_release();
  pdl_wait();
  const int group = blockIdx.y * p.kv_heads + blockIdx.x;
  const int64_t first = int64_t{group} * p.group;
  bool again = false;
  for (int part = 0; threadIdx.x < p.group && part < parts; ++part) {
    again |= part_of<kUnits>(p, first + threadIdx.x, part)->z != 0.0f;
  }
  for (int i = threadIdx.x; i < p.group * kUnits; i += kCombineThreads) {
    const int column = i / kUnits, unit = i % kUnits;
    float4 about[kMaxParts], sums[kMaxParts];
    float base = -INFINITY;
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      if (part >= parts) break;
      const float4* record = part_of<kUnits>(p, first + column, part);
      about[part] = record[0];
      sums[part] = record[1 + unit];
      base = about[part].y > 0.0f ? fmaxf(base, about[part].x) : base;
    }
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
    float total = 0.0f;
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      if (part >= parts) break;
      const bool counts = about[part].y > 0.0f;
      const float factor = counts ? exp2_approx(about[part].x - base) : 0.0f;
      total += about[part].y * factor;
      add_scaled(sum, sums[part], factor);
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    static_cast<uint2*>(p.out)[(first + column) * kUnits + unit] =
        pack(T{}, sum, inverse);
  }
  const int count = __syncthreads_count(again);
  if (threadIdx.x == 0) p.recomputed[group] = count;
}

template <typename T, int kHeadDim>
cudaError_t launch_combine(cudaStream_t stream, const Params& p) {
  return fdjax::launch({.stream = stream,
                        .grid = dim3(p.kv_heads, p.rows),
                        .threads = kCombineThreads,
                        .programmatic = true},  // attention lets it
                       combine_parts<T, kHeadDim / 4>, p);
}

}  // namespace fdjax::decode_attention

// rms_norm on a GPU: one block a row, the row read once and kept in registers.
//
//   out = x * rsqrt(mean(x^2) + epsilon) * (scale + scale_offset)
//
// A decode step normalises a few rows of 8 KB: the time is latency, not bytes. So every
// load of a thread is issued before the first is used, and the scale, which no earlier
// kernel writes, is loaded before waiting for the kernel that makes x.
#pragma once

#include "fdjax/gpu.h"
#include "fdjax/pdl.cuh"
#include "fdjax/vector.cuh"
#include "rms_norm/launch.h"
#include "rms_norm/params.h"

namespace fdjax::rms_norm {

inline constexpr int kWarps = kThreads / 32;

// The sum over the block; every thread gets it.
__device__ inline float block_sum(float value) {
  __shared__ float partial[kWarps];
  for (int lane = 16; lane > 0; lane /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lane);
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp];
  return sum;
}

// `kPacks` packs a thread cover a row; those past its end stay zero.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads) kernel(const Params p) {
  using P = Vec<T, kVec<T>>;
  const int packs = p.size / kVec<T>;
  const P* x = static_cast<const P*>(p.x) + int64_t(blockIdx.x) * packs;
  P* out = static_cast<P*>(p.out) + int64_t(blockIdx.x) * packs;
  const P* scale = static_cast<const P*>(p.scale);

  P scales[kPacks], values[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at < packs) scales[i] = scale[at];
  }
  pdl_release();
  pdl_wait();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at < packs) values[i] = x[at];
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (threadIdx.x + i * kThreads >= packs) continue;
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) {
      const float v = to_float(values[i].values[j]);
      sum += v * v;
    }
  }
  const float inverse = rsqrtf(block_sum(sum) / float(p.size) + p.epsilon);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at >= packs) continue;
    P result;
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) {
      const float factor = to_float(scales[i].values[j]) + p.scale_offset;
      result.values[j] =
          from_float<T>(to_float(values[i].values[j]) * inverse * factor);
    }
    out[at] = result;
  }
}

}  // namespace fdjax::rms_norm

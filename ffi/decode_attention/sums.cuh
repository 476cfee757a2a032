// Four neighbouring dimensions of a query head: how they add, and how they are written.
#pragma once

#include "fdjax/gpu.h"
#include "fdjax/mma.cuh"

namespace fdjax::decode_attention {

__device__ inline void add(float4& sum, const float4& x) {
  sum.x += x.x;
  sum.y += x.y;
  sum.z += x.z;
  sum.w += x.w;
}

__device__ inline void add_scaled(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor;
  sum.y += x.y * factor;
  sum.z += x.z * factor;
  sum.w += x.w * factor;
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

__device__ inline float4 unpack(GpuFloats::bfloat16, const uint2& x) {
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x.y));
  return {low.x, low.y, high.x, high.y};
}

__device__ inline float4 unpack(GpuFloats::float16, const uint2& x) {
  const float2 low = __half22float2(reinterpret_cast<const __half2&>(x.x));
  const float2 high = __half22float2(reinterpret_cast<const __half2&>(x.y));
  return {low.x, low.y, high.x, high.y};
}

// What has been summed up of some keys: four dimensions of the values and the weights,
// all relative to `base`.
struct Sum {
  float base = -INFINITY, total = 0.0f;
  float4 values{0.0f, 0.0f, 0.0f, 0.0f};
};

// Adds `count` parts of others, as many loads on their way as registers hold. `load(i,
// about, values)`: of part i; about.x is its base, about.y the sum of its weights.
template <typename Load>
__device__ void add_parts(int count, const Load& load, Sum& sum) {
  constexpr int kTogether = 8;
  for (int first = 0; first < count; first += kTogether) {
    float2 about[kTogether];
    float4 values[kTogether];
    float raised = sum.base;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      load(min(first + j, count - 1), about[j], values[j]);
      if (first + j >= count) about[j].y = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (about[j].y > 0.0f) raised = fmaxf(raised, about[j].x);
    }
    const float before = sum.total > 0.0f ? exp2_approx(sum.base - raised) : 0.0f;
    sum.base = raised;
    sum.total *= before;
    float4 scaled{0.0f, 0.0f, 0.0f, 0.0f};
    add_scaled(scaled, sum.values, before);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float factor = about[j].y > 0.0f ? exp2_approx(about[j].x - raised) : 0.0f;
      sum.total += about[j].y * factor;
      add_scaled(scaled, values[j], factor);
    }
    sum.values = scaled;
  }
}

}  // namespace fdjax::decode_attention

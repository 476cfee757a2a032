// Four neighbouring dimensions of a query head: how they add, and how they are written.
#pragma once

#include "fdjax/gpu.h"

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

}  // namespace fdjax::decode_attention

// Float types of 16 and 32 bits, and several neighbouring ones as one access.
#pragma once

#include "fdjax/gpu.h"

namespace fdjax {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(GpuFloats::bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(GpuFloats::float16 x) { return __half2float(x); }

// Rounds to nearest, ties to even.
template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float(float x) {
  return x;
}
template <>
__device__ inline GpuFloats::bfloat16 from_float(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ inline GpuFloats::float16 from_float(float x) {
  return __float2half(x);
}

// kVec neighbouring elements, read and written as one access.
template <typename T, int kVec>
struct alignas(sizeof(T) * kVec) Vec {
  T values[kVec];
};

}  // namespace fdjax

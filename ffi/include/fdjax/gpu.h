// The few names in which CUDA and HIP differ, for kernels and for handlers.
#pragma once

#if defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

namespace fdjax {

#if defined(__HIP_PLATFORM_AMD__)
#define FDJAX_GRID_CONSTANT
using gpu_stream = hipStream_t;
using gpu_error = hipError_t;
inline constexpr gpu_error kGpuSuccess = hipSuccess;
inline const char* gpu_error_string(gpu_error error) {
  return hipGetErrorString(error);
}
struct GpuFloats {
  using bfloat16 = __hip_bfloat16;
  using float16 = __half;
};
#else
#define FDJAX_GRID_CONSTANT __grid_constant__
using gpu_stream = cudaStream_t;
using gpu_error = cudaError_t;
inline constexpr gpu_error kGpuSuccess = cudaSuccess;
inline const char* gpu_error_string(gpu_error error) {
  return cudaGetErrorString(error);
}
struct GpuFloats {
  using bfloat16 = __nv_bfloat16;
  using float16 = __half;
};
#endif

}  // namespace fdjax

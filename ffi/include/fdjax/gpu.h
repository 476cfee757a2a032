// The few names in which CUDA and HIP differ.
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

namespace fdjax {

#if defined(__HIPCC__)
#define FDJAX_GRID_CONSTANT
using gpu_stream = hipStream_t;
struct GpuFloats {
  using bfloat16 = __hip_bfloat16;
  using float16 = __half;
};
// The last launch's error, or nullptr.
inline const char* launch_error() {
  const hipError_t error = hipGetLastError();
  return error == hipSuccess ? nullptr : hipGetErrorString(error);
}
#else
#define FDJAX_GRID_CONSTANT __grid_constant__
using gpu_stream = cudaStream_t;
struct GpuFloats {
  using bfloat16 = __nv_bfloat16;
  using float16 = __half;
};
// The last launch's error, or nullptr.
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
#endif

}  // namespace fdjax

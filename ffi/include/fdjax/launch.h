// Kernel launches with the attributes that <<<>>> cannot express.
#pragma once

#include "fdjax/gpu.h"

namespace fdjax {

inline int blocks_for(int items, int items_per_block) {
  return (items + items_per_block - 1) / items_per_block;
}

struct Launch {
  gpu_stream stream;
  dim3 grid;
  int threads;
  int shared_bytes = 0;
  int cluster = 1;            // blocks of a cluster, along x
  bool programmatic = false;  // may start before its predecessor ends (pdl.cuh)
};

#if defined(__HIPCC__)
// ROCm has neither clusters nor programmatic launches; what needs a cluster is not
// built.
template <typename... Args>
gpu_error launch(const Launch& how, void (*kernel)(Args...), Args... args) {
  kernel<<<how.grid, how.threads, how.shared_bytes, how.stream>>>(args...);
  return hipGetLastError();
}
#else
template <typename... Args>
gpu_error launch(const Launch& how, void (*kernel)(Args...), Args... args) {
  // Without asking, a kernel gets 48 KB, its static shared memory included. More than
  // the device has is an error here.
  if (how.shared_bytes > 32 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  if (how.cluster > 8) {  // the most that every device with clusters has
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = how.threads;
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = how.stream;
  config.attrs = attributes;
  if (how.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = how.cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  if (how.programmatic) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, args...);
}
#endif

}  // namespace fdjax

// The launch: shared memory, grid, cluster. No XLA header.
#pragma once

#include <algorithm>

#include "decode_attention/kernel.cuh"

namespace fdjax::decode_attention {

template <typename G>
cudaError_t launch(cudaStream_t stream, Params p, const Launch& options) {
  const int splits = options.splits;
  p.head_count = options.heads_per_block;
  const int bytes =
      p.head_count * G::kQueryBytes +
      std::max(G::kRingBytes,
               Exchange<G>::bytes(p.head_count, p.group, splits));
  const void* function = reinterpret_cast<const void*>(kernel<G>);
  cudaError_t error = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && splits > 8) {  // 8 is what every device must take
    error = cudaFuncSetAttribute(function,
                                 cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(splits, p.kv_heads / p.head_count, p.rows);
  config.blockDim = dim3(G::kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (splits > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = splits;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  if (options.programmatic) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel<G>, p);
}

template <typename T, int kColumns>
cudaError_t dispatch_head_dim(cudaStream_t stream, const Params& p, const Launch& how) {
  switch (p.head_dim) {
    case 64:
      return launch<Geometry<T, 64, kColumns>>(stream, p, how);
    case 80:
      return launch<Geometry<T, 80, kColumns>>(stream, p, how);
    case 96:
      return launch<Geometry<T, 96, kColumns>>(stream, p, how);
    case 128:
      return launch<Geometry<T, 128, kColumns>>(stream, p, how);
    case 256:
      return launch<Geometry<T, 256, kColumns>>(stream, p, how);
    default:
      return cudaErrorInvalidValue;
  }
}

// `T` is the type of q, kv and out. Supported: p.head_dim of 64, 80, 96, 128 and 256,
// p.group of 1 to 16; the caller has checked them.
template <typename T>
cudaError_t launch_decode_attention(cudaStream_t stream, const Params& p,
                                    const Launch& how) {
  return p.group <= 8 ? dispatch_head_dim<T, 8>(stream, p, how)
                      : dispatch_head_dim<T, 16>(stream, p, how);
}

}  // namespace fdjax::decode_attention

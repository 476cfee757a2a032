// The kernels, compiled apart from the handler and its XLA headers.
#include <algorithm>

#include "fdjax/launch.h"
#include "prefill_attention/launch.h"
#include "prefill_attention/mma_kernel.cuh"
#include "prefill_attention/wgmma_kernel.cuh"

namespace fdjax::prefill_attention {
namespace {

// As many as there can be: how many there are is known to the device alone.
int most_items(const Params& p) { return p.num_tiles * p.attention.kv_heads; }

template <typename G>
cudaError_t launch_mma(cudaStream_t stream, const Params& p) {
  const fdjax::Launch how{.stream = stream,
                          .grid = dim3(most_items(p)),
                          .threads = G::kThreads,
                          .shared_bytes = G::kSharedBytes};
  return fdjax::launch(how, mma_kernel<G>, p);
}

template <typename G>
cudaError_t launch_wgmma(cudaStream_t stream, const Params& p) {
  int device, multiprocessors;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const fdjax::Launch how{.stream = stream,
                          .grid = dim3(std::min(most_items(p), multiprocessors)),
                          .threads = G::kThreads,
                          .shared_bytes = G::kSharedBytes};
  return fdjax::launch(how, wgmma_kernel<G>, p);
}

// Of the two kernels the device's code has one: a kernel without a body has no shared
// memory.
template <typename T, int kHeadDim>
cudaError_t launch_either(cudaStream_t stream, Params p) {
  p.attention = decode_attention::in_units_of_log2(p.attention);
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, wgmma_kernel<WgmmaGeometry<T, kHeadDim>>);
  if (error != cudaSuccess) return error;
  return attributes.sharedSizeBytes > 0
             ? launch_wgmma<WgmmaGeometry<T, kHeadDim>>(stream, p)
             : launch_mma<MmaGeometry<T, kHeadDim>>(stream, p);
}

}  // namespace

template <typename T>
cudaError_t launch_prefill_attention(cudaStream_t stream, const Params& p) {
  if (p.attention.head_dim <= 64) return launch_either<T, 64>(stream, p);
  if (p.attention.head_dim <= 128) return launch_either<T, 128>(stream, p);
  return launch_either<T, 256>(stream, p);
}

template cudaError_t launch_prefill_attention<GpuFloats::bfloat16>(cudaStream_t,
                                                                   const Params&);
template cudaError_t launch_prefill_attention<GpuFloats::float16>(cudaStream_t,
                                                                  const Params&);

}  // namespace fdjax::prefill_attention

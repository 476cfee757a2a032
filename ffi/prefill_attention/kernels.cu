// The kernels, compiled apart from the handler and its XLA headers.
#include "prefill_attention/launch.cuh"

namespace fdjax::prefill_attention {
namespace {

// `p` says afterwards whether the unified maximum was taken. float16 does not hold
// weights over the range of its bounds.
template <typename T, int kHeadDim>
cudaError_t launch_prompts(cudaStream_t stream, Params& p) {
  if constexpr (std::is_same_v<T, GpuFloats::bfloat16>) {
    using G = WgmmaGeometry<T, kHeadDim, Use::kUnified>;
    Sources sources;
    if (p.attention.unified && has_wgmma<G>() && encode_sources<G>(p, &sources)) {
      return launch_best_wgmma<T, kHeadDim, Use::kUnified>(stream, p, sources);
    }
  }
  p.attention.unified = false;
  return launch_attention<T, kHeadDim, Use::kSynchronised>(stream, p);
}

}  // namespace

template <typename T>
cudaError_t launch_prefill_attention(cudaStream_t stream, const Params& params) {
  Params p = in_units_of_log2(params);
  const cudaError_t error = of_size(p.attention.head_dim, [&](auto size) {
    return launch_prompts<T, decltype(size)::value>(stream, p);
  });
  return error == cudaSuccess ? launch_merge<T, Use::kSynchronised>(stream, p) : error;
}

cudaError_t clear_recomputed(cudaStream_t stream, const Params& p, int64_t layers) {
  if (!p.attention.unified) return cudaSuccess;
  const size_t bytes = layers * p.attention.rows * sizeof(int32_t);
  return cudaMemsetAsync(p.attention.recomputed, 0, bytes, stream);
}

template <typename T>
cudaError_t launch_shared_prefixes(cudaStream_t stream, const Params& params,
                                   const Joining& joining) {
  const Params p = in_units_of_log2(params);
  const cudaError_t error = of_size(p.attention.head_dim, [&](auto size) {
    return launch_attention<T, decltype(size)::value, Use::kPrefixes>(stream, p);
  });
  if (error != cudaSuccess) return error;
  const dim3 grid(p.queries, p.attention.kv_heads);
  return fdjax::launch(launch_after<T, Use::kPrefixes>(stream, grid), join_kernel<T>, p,
                       joining);
}

template cudaError_t launch_prefill_attention<GpuFloats::bfloat16>(cudaStream_t,
                                                                   const Params&);
template cudaError_t launch_prefill_attention<GpuFloats::float16>(cudaStream_t,
                                                                  const Params&);
template cudaError_t launch_shared_prefixes<GpuFloats::bfloat16>(cudaStream_t,
                                                                 const Params&,
                                                                 const Joining&);
template cudaError_t launch_shared_prefixes<GpuFloats::float16>(cudaStream_t,
                                                                const Params&,
                                                                const Joining&);

}  // namespace fdjax::prefill_attention

// The kernels of prefill_attention, compiled to leave states and to follow a tree.
#include "attention_states/launch.h"
#include "prefill_attention/launch.cuh"

namespace fdjax::attention_states {

template <typename T>
cudaError_t launch_attention_states(cudaStream_t stream,
                                    const prefill_attention::Params& params) {
  using prefill_attention::Use;
  const prefill_attention::Params p = prefill_attention::in_units_of_log2(params);
  const cudaError_t error =
      prefill_attention::of_size(p.attention.head_dim, [&](auto size) {
        return prefill_attention::launch_attention<T, decltype(size)::value,
                                                   Use::kStates>(stream, p);
      });
  if (error != cudaSuccess) return error;
  return prefill_attention::launch_merge<T, Use::kStates>(stream, p);
}

template cudaError_t launch_attention_states<GpuFloats::bfloat16>(
    cudaStream_t, const prefill_attention::Params&);
template cudaError_t launch_attention_states<GpuFloats::float16>(
    cudaStream_t, const prefill_attention::Params&);

}  // namespace fdjax::attention_states

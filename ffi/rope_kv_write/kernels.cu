// The kernels, compiled apart from the handler and its XLA headers.
#include "rope_kv_write/launch.cuh"

namespace fdjax::rope_kv_write {

template gpu_error launch_tokens<float>(gpu_stream, const Params&);
template gpu_error launch_tokens<GpuFloats::bfloat16>(gpu_stream, const Params&);
template gpu_error launch_tokens<GpuFloats::float16>(gpu_stream, const Params&);

}  // namespace fdjax::rope_kv_write

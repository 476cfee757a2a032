// The kernels, compiled apart from the handler and its XLA headers.
#include "add_norm/launch.cuh"

namespace fdjax::add_norm {

template gpu_error launch_rows<float>(gpu_stream, const Params&, bool);
template gpu_error launch_rows<GpuFloats::bfloat16>(gpu_stream, const Params&, bool);
template gpu_error launch_rows<GpuFloats::float16>(gpu_stream, const Params&, bool);

}  // namespace fdjax::add_norm

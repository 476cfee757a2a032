// The kernels, compiled apart from the handler and its XLA headers.
#include "matmul/launch.cuh"

namespace fdjax::matmul {

template cudaError_t launch_gemv<GpuFloats::bfloat16>(const Params&,
                                                      const LaunchOptions&);
template cudaError_t launch_gemv<GpuFloats::float16>(const Params&,
                                                     const LaunchOptions&);
template cudaError_t launch_gate<GpuFloats::bfloat16>(const Params&,
                                                      const LaunchOptions&);
template cudaError_t launch_gate<GpuFloats::float16>(const Params&,
                                                     const LaunchOptions&);
template cudaError_t launch_flat<GpuFloats::bfloat16>(const Params&, const FlatConfig&,
                                                      const LaunchOptions&);
template cudaError_t launch_flat<GpuFloats::float16>(const Params&, const FlatConfig&,
                                                     const LaunchOptions&);

}  // namespace fdjax::matmul

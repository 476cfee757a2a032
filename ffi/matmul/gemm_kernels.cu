// The kernels of gemm.cuh, compiled beside the others.
#include "matmul/gemm_launch.cuh"

namespace fdjax::matmul {

template cudaError_t launch_gemm<GpuFloats::bfloat16>(const Params&, const GemmConfig&,
                                                      const LaunchOptions&);
template cudaError_t launch_gemm<GpuFloats::float16>(const Params&, const GemmConfig&,
                                                     const LaunchOptions&);

}  // namespace fdjax::matmul

// The kernels of persistent.cuh, compiled beside the others.
#include "matmul/persistent_launch.cuh"

namespace fdjax::matmul {

template cudaError_t launch_persistent<GpuFloats::bfloat16>(const Params&,
                                                            const PersistentConfig&,
                                                            const LaunchOptions&);
template cudaError_t launch_persistent<GpuFloats::float16>(const Params&,
                                                           const PersistentConfig&,
                                                           const LaunchOptions&);

}  // namespace fdjax::matmul

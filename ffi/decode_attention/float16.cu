// The kernels for float16. Each type is half of the longest compilation.
#include "decode_attention/launch.cuh"

namespace fdjax::decode_attention {

template cudaError_t launch_decode_attention<GpuFloats::float16>(cudaStream_t,
                                                                 const Params&,
                                                                 const LaunchConfig&);

}  // namespace fdjax::decode_attention

// The kernels and their launch, compiled apart from the handler and its XLA headers.
#include "embedding/kernel.cuh"
#include "fdjax/launch.h"

namespace fdjax::embedding {

template <typename T>
gpu_error launch_rows(gpu_stream stream, const Params& p) {
  return launch({.stream = stream, .grid = dim3(p.rows), .threads = kThreads},
                kernel<T>, p);
}

template gpu_error launch_rows<float>(gpu_stream, const Params&);
template gpu_error launch_rows<GpuFloats::bfloat16>(gpu_stream, const Params&);
template gpu_error launch_rows<GpuFloats::float16>(gpu_stream, const Params&);

}  // namespace fdjax::embedding

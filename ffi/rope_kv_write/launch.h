// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "fdjax/gpu.h"
#include "rope_kv_write/params.h"

namespace fdjax::rope_kv_write {

// `T` is float, bfloat16 or float16.
template <typename T>
gpu_error launch_tokens(gpu_stream stream, const Params& p);

}  // namespace fdjax::rope_kv_write

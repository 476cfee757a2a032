// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "embedding/limits.h"
#include "embedding/params.h"
#include "fdjax/gpu.h"

namespace fdjax::embedding {

// Elements of one access.
template <typename T>
inline constexpr int kVec = kUnitBytes / sizeof(T);

// `T` is float, bfloat16 or float16. Vectors are multiples of 16 bytes, and aligned.
template <typename T>
gpu_error launch_rows(gpu_stream stream, const Params& p);

}  // namespace fdjax::embedding

// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "add_norm/limits.h"
#include "add_norm/params.h"
#include "fdjax/gpu.h"

namespace fdjax::add_norm {

// Elements of one access, and of the longest row.
template <typename T>
inline constexpr int kVec = kUnitBytes / sizeof(T);
template <typename T>
inline constexpr int kMaxSize = kMaxRowBytes / sizeof(T);

// `T` is float, bfloat16 or float16. Rows are multiples of 16 bytes, of at most
// `kMaxSize` elements, and aligned.
template <typename T>
gpu_error launch_rows(gpu_stream stream, const Params& p, bool programmatic);

}  // namespace fdjax::add_norm

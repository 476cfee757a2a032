// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "add_norm/params.h"
#include "fdjax/gpu.h"

namespace fdjax::add_norm {

inline constexpr int kThreads = 512;

// 16 bytes of a row.
template <typename T>
inline constexpr int kVec = 16 / sizeof(T);

// Elements of a row that the largest instance keeps in registers.
template <typename T>
inline constexpr int kMaxSize = 4 * kThreads * kVec<T>;

// `T` is float, bfloat16 or float16. Rows are multiples of 16 bytes, of at most
// `kMaxSize` elements, and aligned.
template <typename T>
gpu_error launch_rows(gpu_stream stream, const Params& p, bool programmatic);

}  // namespace fdjax::add_norm

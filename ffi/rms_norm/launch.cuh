// The launch of rms_norm, for its handler and for handlers that chain kernels.
#pragma once

#include "fdjax/launch.h"
#include "rms_norm/kernel.cuh"

namespace fdjax::rms_norm {

// Elements of a row that the largest instance keeps in registers.
template <typename T>
inline constexpr int kMaxSize = 4 * kThreads * kVec<T>;

// Rows are multiples of 16 bytes, of at most `kMaxSize` elements, and aligned.
template <typename T>
gpu_error launch_rows(gpu_stream stream, const Params& p, bool programmatic) {
  const Launch how{.stream = stream,
                   .grid = dim3(p.rows),
                   .threads = kThreads,
                   .programmatic = programmatic};
  const int packs = p.size / kVec<T>;
  if (packs <= kThreads) return launch(how, kernel<T, 1>, p);
  if (packs <= 2 * kThreads) return launch(how, kernel<T, 2>, p);
  return launch(how, kernel<T, 4>, p);
}

}  // namespace fdjax::rms_norm

// The launch of rms_norm.
#pragma once

#include "fdjax/launch.h"
#include "rms_norm/kernel.cuh"

namespace fdjax::rms_norm {

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

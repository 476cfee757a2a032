// The launch of add_norm.
#pragma once

#include "add_norm/kernel.cuh"
#include "fdjax/launch.h"

namespace fdjax::add_norm {

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

}  // namespace fdjax::add_norm

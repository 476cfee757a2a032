// The kernel, compiled apart from the handler and its XLA headers.
#include "fdjax/launch.h"
#include "prefill_plan/kernel.cuh"

namespace fdjax::prefill_plan {

gpu_error launch_plan(gpu_stream stream, const Params& p) {
  return launch({.stream = stream,
                 .grid = dim3(1),
                 .threads = kThreads,
                 .shared_bytes = sizeof(Shared)},
                plan_kernel, p);
}

}  // namespace fdjax::prefill_plan

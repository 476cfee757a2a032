// The kernel, compiled apart from the handler and its XLA headers.
#include "attention_plan/kernel.cuh"
#include "attention_plan/launch.h"
#include "fdjax/launch.h"

namespace fdjax::attention_plan {

gpu_error launch_plan(gpu_stream stream, const Params& p) {
  return launch({.stream = stream,
                 .grid = dim3(1),
                 .threads = kThreads,
                 .shared_bytes = sizeof(Shared)},
                plan_kernel, p);
}

}  // namespace fdjax::attention_plan

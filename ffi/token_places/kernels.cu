// The kernel, compiled apart from the handler and its XLA headers.
#include "fdjax/launch.h"
#include "token_places/kernel.cuh"

namespace fdjax::token_places {

gpu_error launch_places(gpu_stream stream, const Params& p) {
  return launch({.stream = stream,
                 .grid = dim3(blocks_for(p.tokens, kThreads)),
                 .threads = kThreads},
                places_kernel, p);
}

}  // namespace fdjax::token_places

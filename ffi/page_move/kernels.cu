// The kernel and its launch, compiled apart from the handler and its XLA headers.
#include "fdjax/launch.h"
#include "page_move/kernel.cuh"
#include "page_move/launch.h"

namespace fdjax::page_move {

gpu_error launch_moves(gpu_stream stream, const Params& p) {
  const auto blocks =
      static_cast<unsigned>((p.page_units + kBlockUnits - 1) / kBlockUnits);
  return launch({.stream = stream, .grid = dim3(blocks, p.moves), .threads = kThreads},
                kernel, p);
}

}  // namespace fdjax::page_move

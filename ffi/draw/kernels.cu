// The kernels, compiled apart from the handler and its XLA headers.
#include "draw/launch.cuh"

namespace fdjax::draw {

gpu_error launch_draw(gpu_stream stream, const Params& p) {
  return launch_rows<kThreads>(stream, p, blocks_of(p));
}

}  // namespace fdjax::draw

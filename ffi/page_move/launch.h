// The launch, for handlers: host code, which does not compile the kernel.
#pragma once

#include "fdjax/gpu.h"
#include "page_move/params.h"

namespace fdjax::page_move {

gpu_error launch_moves(gpu_stream stream, const Params& p);

}  // namespace fdjax::page_move

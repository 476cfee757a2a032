// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "draw/limits.h"
#include "draw/params.h"
#include "fdjax/gpu.h"

namespace fdjax::draw {

// For GPUs of sm_90. The caller has checked that there are 1 to `kMaxVocab` tokens and
// 1 to `kMaxRows` rows.
gpu_error launch_draw(gpu_stream stream, const Params& p);

}  // namespace fdjax::draw

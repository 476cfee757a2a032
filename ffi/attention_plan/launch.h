// The launch, for handlers.
#pragma once

#include "attention_plan/params.h"
#include "fdjax/gpu.h"

namespace fdjax::attention_plan {

gpu_error launch_plan(gpu_stream stream, const Params& p);

}  // namespace fdjax::attention_plan

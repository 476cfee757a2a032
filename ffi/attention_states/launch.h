// The launch, for the handler: host code, which does not compile the kernels.
#pragma once

#include "fdjax/gpu.h"
#include "prefill_attention/params.h"

namespace fdjax::attention_states {

// `T` is the type of q and kv: bfloat16 or float16. The caller has checked what
// prefill_attention/launch.h names.
template <typename T>
cudaError_t launch_attention_states(cudaStream_t stream,
                                    const prefill_attention::Params& p);

}  // namespace fdjax::attention_states

// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "fdjax/gpu.h"
#include "prefill_attention/params.h"

namespace fdjax::prefill_attention {

// `T` is the type of q, kv and out: bfloat16 or float16. The caller has checked that
// the head size is a multiple of 8 up to 256, the group at most 128, the page size 2 to
// 128, the scale positive, and the sizes that decode_attention/launch.h names.
template <typename T>
cudaError_t launch_prefill_attention(cudaStream_t stream, const Params& p);

// Launches only count what is computed again: `p.attention.recomputed` of so many
// layers is zero before.
cudaError_t clear_recomputed(cudaStream_t stream, const Params& p, int64_t layers);

// Adds to `out`, what queries have found in keys of their own, what they find in the
// prefixes that they share. `params.order` is not nullptr, and every item has a record.
// The launch before it in the stream is that of their own keys' attention, which does
// not rotate: the kernel starts before that ends.
template <typename T>
cudaError_t launch_shared_prefixes(cudaStream_t stream, const Params& params,
                                   const Joining& joining);

}  // namespace fdjax::prefill_attention

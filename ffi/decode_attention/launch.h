// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "decode_attention/params.h"
#include "fdjax/gpu.h"

namespace fdjax::decode_attention {

// `T` is the type of q, kv and out: bfloat16 or float16. The caller has checked
// p.head_dim (64, 80, 96, 128 or 256), p.group (1 to 8; to 16 with heads of 64 or 128),
// p.page_size (1 to 128), that the page table has room for at most 2^25 tokens a row,
// and that the KV array has less than 2^31 slots, those of all layers and of both
// halves counted.
template <typename T>
cudaError_t launch_decode_attention(cudaStream_t stream, const Params& p,
                                    const LaunchConfig& config);

}  // namespace fdjax::decode_attention

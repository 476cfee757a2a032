// The launches that the chain is made of. They are compiled with the handlers of their
// own operations, once; here only their signatures are known.
#pragma once

#include <cuda_runtime.h>

#include "decode_attention/params.h"
#include "matmul/params.h"
#include "rms_norm/params.h"

namespace fdjax::rms_norm {
template <typename T>
cudaError_t launch_rows(cudaStream_t stream, const Params& p, bool programmatic);
}

namespace fdjax::decode_attention {
template <typename T>
cudaError_t launch_decode_attention(cudaStream_t stream, const Params& p,
                                    const Launch& how);
}

namespace fdjax::matmul {
template <typename T>
cudaError_t launch_gemv(const Params& p, const How& how);
template <typename T>
cudaError_t launch_flat(const Params& p, const FlatConfig& config, const How& how);
}  // namespace fdjax::matmul

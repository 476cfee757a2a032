// GEMMs by a library, cuBLASLt, for more rows than the package's kernels take.
//
// Called by a handler, a GEMM adds its bias and its residual, and there is no
// autotuning and no workspace: XLA's own choice, made without a look at what follows,
// splits K and adds the parts with another kernel.
#pragma once

#include <string>

#include "matmul/params.h"

namespace fdjax::matmul {

// Finds the library that JAX has loaded and makes its handle for `device`. Must have
// been called before `launch_library`, and not while a stream is being captured.
void prepare_library(int device);

// What keeps `launch_library` from working on `device`; empty: nothing.
std::string library_problem(int device);

// y = x * weight^T + bias + residual, in 16 bits, or x * weight^T in float32; without a
// gate. Any m. `candidate` counts what the library's heuristic proposes, the best by
// its own estimate first.
template <typename T>
cudaError_t launch_library(const Params& p, int candidate, cudaStream_t stream);

}  // namespace fdjax::matmul

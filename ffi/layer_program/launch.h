// The launches, for the handler: host code, which does not compile the kernels.
#pragma once

#include "fdjax/gpu.h"
#include "layer_program/params.h"

namespace fdjax::layer_program {

// Each kernel may start before its predecessor has ended (pdl.cuh).

template <typename T>
cudaError_t launch_head_norm(cudaStream_t stream, const HeadNormParams& p);

template <typename T>
cudaError_t launch_activate(cudaStream_t stream, const ActivateParams& p);

template <typename T>
cudaError_t launch_sum(cudaStream_t stream, const SumParams& p);

// out[i] = x[places[i]]; a place beyond x's rows is the nearest of them.
template <typename T>
cudaError_t launch_gather(cudaStream_t stream, const RowsParams& p);

// out[places[i]] = x[i]; a place beyond out's rows is left out.
template <typename T>
cudaError_t launch_scatter(cudaStream_t stream, const RowsParams& p);

}  // namespace fdjax::layer_program

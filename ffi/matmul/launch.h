// The launches, for handlers: host code, which does not compile the kernels.
#pragma once

#include "fdjax/gpu.h"
#include "matmul/params.h"

namespace fdjax::matmul {

// M from 1 to 4.
template <typename T>
cudaError_t launch_gemv(const Params& p, const LaunchOptions& options);

// M from 1 to 64.
template <typename T>
cudaError_t launch_flat(const Params& p, const FlatConfig& config,
                        const LaunchOptions& options);

// M from 1 to 128, y in 16 bits.
template <typename T>
cudaError_t launch_gemm(const Params& p, const GemmConfig& config,
                        const LaunchOptions& options);

// Any M, y in 16 bits.
template <typename T>
cudaError_t launch_persistent(const Params& p, const PersistentConfig& config,
                              const LaunchOptions& options);

// y = activation(gate) * up of x [m, n], which a GEMM has written: gate columns, then
// up columns. `columns` is a multiple of 8, weight and k are not read.
template <typename T>
cudaError_t launch_gate(const Params& p, const LaunchOptions& options);

}  // namespace fdjax::matmul

// What flat.cuh and gemm.cuh share: a stage of the ring is 64 columns of K, a row of
// which is a row of the 128 byte swizzle, and how a warpgroup multiplies one.
#pragma once

#include <cstdint>

#include "fdjax/wgmma.cuh"
#include "matmul/limits.h"

namespace fdjax::matmul {

inline constexpr int kRowBytes = kTileColumns * 2;

// Adds what a stage contributes, [64, 64] times [kN, 64]^T, to `sums`. What the stage
// before contributes is there when it returns, its own need not be.
template <typename T, int kN>
__device__ __forceinline__ void add_stage(float (&sums)[kN / 2], uint64_t a,
                                          uint64_t b) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kTileColumns / 16; ++step) {
    Wgmma<T, kN>::add(sums, a + step * kWgmmaStepK, b + step * kWgmmaStepK);
  }
  wgmma_commit();
  wgmma_wait<1>();
}

}  // namespace fdjax::matmul

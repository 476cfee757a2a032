// The gate after a GEMM that writes all of its sums, as the library's does.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
#include "fdjax/pdl.cuh"
#include "fdjax/vector.cuh"
#include "matmul/epilogue.cuh"
#include "matmul/params.h"

namespace fdjax::matmul {

inline constexpr int kGateThreads = 256;
inline constexpr int kGateColumns = 8;  // of a thread: 16 bytes

template <typename T>
__device__ void load_columns(const T* source, float (&columns)[kGateColumns]) {
  const auto bits = *reinterpret_cast<const Vec<T, kGateColumns>*>(source);
#pragma unroll
  for (int i = 0; i < kGateColumns; ++i) columns[i] = to_float(bits.values[i]);
}

// y = activation(x[:, :columns]) * x[:, columns:], x being [m, n]. Grid: columns, rows.
// (Four rows a thread take 10 us of 256 x 14336, one 7.4.)
template <typename T>
__global__ void __launch_bounds__(kGateThreads)
    gate(FDJAX_GRID_CONSTANT const Params p) {
  pdl_release();
  pdl_wait();
  const int column = (blockIdx.x * kGateThreads + threadIdx.x) * kGateColumns;
  if (column >= p.columns) return;
  const T* row = static_cast<const T*>(p.x) + int64_t{blockIdx.y} * p.n + column;
  float gated[kGateColumns], up[kGateColumns];
  load_columns(row, gated);
  load_columns(row + p.columns, up);
  finish<T>(p, blockIdx.y, column, gated, up);
}

}  // namespace fdjax::matmul

// The GEMV on CUDA cores, M up to 4.
//
// With so few tokens a tensor core would mostly multiply padding (FlashDecoding++
// section 5 takes CUDA cores there). A block computes kRows weight rows for all tokens:
// its threads share K, 8 elements (16 bytes) each, so that the block reads 2 KB of
// every row at a time. What the next step needs is loaded before the current step is
// multiplied, which keeps kRows weight accesses of 16 bytes in flight in every thread.
// Each x that is read and converted serves kRows rows.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
#include "fdjax/pdl.cuh"
#include "fdjax/vector.cuh"
#include "matmul/epilogue.cuh"
#include "matmul/params.h"

namespace fdjax::matmul {

inline constexpr int kGemvThreads = 128;
inline constexpr int kGemvWarps = kGemvThreads / 32;
inline constexpr int kElements = 8;                     // of one access
inline constexpr int kStep = kGemvThreads * kElements;  // along K
// Rows of a block for M = 1, 2, 4: the fastest of 2, 4 and 8. More rows reuse x better,
// but leave fewer blocks on an SM.
inline constexpr int gemv_rows(int m) { return m == 2 ? 2 : 4; }

__device__ inline void widen(uint32_t pair, float& low, float& high,
                             GpuFloats::bfloat16) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

__device__ inline void widen(uint32_t pair, float& low, float& high,
                             GpuFloats::float16) {
  const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  low = both.x;
  high = both.y;
}

template <typename T>
__device__ void widen(const uint4& bits, float (&values)[kElements]) {
  widen(bits.x, values[0], values[1], T{});
  widen(bits.y, values[2], values[3], T{});
  widen(bits.z, values[4], values[5], T{});
  widen(bits.w, values[6], values[7], T{});
}

// Weights are read once, by one thread: they need no place in L1. (No L2::256B hint
// either: see tensor_map.h.)
__device__ inline uint4 load_weight(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

// The block's rows; of a gated GEMM, half are gate rows and half the matching up
// rows.
template <typename T, int kRows>
struct Rows {
  const T* pointers[kRows];

  __device__ Rows(const Params& p, int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      constexpr int kHalf = kRows / 2;
      int row = first + r;
      if (p.gated && r >= kHalf) row = p.columns + first + r - kHalf;
      row = min(row, p.n - 1);  // beyond the end: read anything, write nothing
      pointers[r] =
          static_cast<const T*>(p.weight.values) + static_cast<int64_t>(row) * p.k;
    }
  }

  __device__ void load(int k, uint4 (&weights)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) weights[r] = load_weight(pointers[r] + k);
  }
};

template <typename T, int kM>
__device__ void load_x(const Params& p, int k, uint4 (&x)[kM]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int row = min(m, p.m - 1);
    x[m] = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) +
                                           static_cast<int64_t>(row) * p.k + k);
  }
}

// sums[m * kRows + r] += x[m] * weights[r], 8 elements of each.
template <typename T, int kM, int kRows>
__device__ void multiply(const uint4 (&packed_x)[kM], const uint4 (&weights)[kRows],
                         float (&sums)[kM * kRows]) {
  float x[kM][kElements];
#pragma unroll
  for (int m = 0; m < kM; ++m) widen<T>(packed_x[m], x[m]);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float w[kElements];
    widen<T>(weights[r], w);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        sums[m * kRows + r] = fmaf(x[m][i], w[i], sums[m * kRows + r]);
      }
    }
  }
}

// Sums `values` over the warp: lane l ends with the total of values[l * kCount / 32] in
// values[0]. Each exchange halves the number of values that a lane is responsible for,
// so kCount sums cost about kCount shuffles instead of 5 * kCount.
template <int kCount>
__device__ void reduce_warp(float (&values)[kCount]) {
  const int lane = threadIdx.x % 32;
  int count = kCount;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const bool upper = lane & distance;
    if (count > 1) {
      count /= 2;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float sent = upper ? values[i] : values[i + count];
        const float kept = upper ? values[i + count] : values[i];
        values[i] = kept + __shfl_xor_sync(~0u, sent, distance);
      }
    } else {
      values[0] += __shfl_xor_sync(~0u, values[0], distance);
    }
  }
}

template <typename T, int kM, int kRows>
__global__ void __launch_bounds__(kGemvThreads)
    gemv(FDJAX_GRID_CONSTANT const Params p) {
  constexpr int kSums = kM * kRows;
  static_assert(kSums <= 32 && (kSums & (kSums - 1)) == 0);
  __shared__ float partial[kGemvWarps][kSums];
  const int rows = p.gated ? kRows / 2 : kRows;  // columns of y of this block
  const int first = blockIdx.x * rows;
  const Rows<T, kRows> source(p, first);
  uint4 next[kRows], next_x[kM];
  int k = threadIdx.x * kElements;
  if (k < p.k) source.load(k, next);
  pdl_release();
  pdl_wait();
  if (k < p.k) load_x<T>(p, k, next_x);
  const int m = threadIdx.x / rows, r = threadIdx.x % rows;
  const bool writes = m < p.m && m < kM && first + r < p.columns;
  Vec<T, 1> residual{};
  if (writes) residual = residual_of<T, 1>(p, m, first + r);

  float sums[kSums] = {};
  while (k < p.k) {
    uint4 weights[kRows], x[kM];
#pragma unroll
    for (int r = 0; r < kRows; ++r) weights[r] = next[r];
#pragma unroll
    for (int m = 0; m < kM; ++m) x[m] = next_x[m];
    k += kStep;
    if (k < p.k) {
      source.load(k, next);
      load_x<T>(p, k, next_x);
    }
    multiply<T>(x, weights, sums);
  }

  reduce_warp(sums);
  const int lane = threadIdx.x % 32;
  if (lane % (32 / kSums) == 0) {
    partial[threadIdx.x / 32][lane / (32 / kSums)] = sums[0];
  }
  __syncthreads();
  if (!writes) return;
  float total[1] = {}, second[1] = {};
#pragma unroll
  for (int warp = 0; warp < kGemvWarps; ++warp) {
    total[0] += partial[warp][m * kRows + r];
    if (p.gated) second[0] += partial[warp][m * kRows + rows + r];
  }
  finish<T>(p, m, first + r, total, second, residual);
}

}  // namespace fdjax::matmul

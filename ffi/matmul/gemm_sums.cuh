// The end of gemm.cuh: from the accumulators of all blocks of a cluster to rows of y.
#pragma once

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "matmul/epilogue.cuh"
#include "matmul/gemm_ring.cuh"

namespace fdjax::matmul {

// What becomes of a tile's two halves.
enum class Gate { kNone, kSilu, kGeluTanh, kOther };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// From the accumulators' layout to [kTokens][kPitch].
template <typename S, int kN>
__device__ __forceinline__ void gemm_store(const float (&sums)[kN / 2], float* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* target = shared + (warp * 16 + lane / 4) * S::kPitch + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kN / 2; i += 2) {
    *reinterpret_cast<float2*>(target + i / 4 * 8 + i / 2 % 2 * 8 * S::kPitch) = {
        sums[i], sums[i + 1]};
  }
}

// The sums of 4 columns over the blocks that share K, rank by rank.
template <int kSplit>
__device__ void gemm_gather(const float* source, float (&sums)[4]) {
  float4 parts[kSplit];
#pragma unroll
  for (int rank = 0; rank < kSplit; ++rank) {
    parts[rank] = kSplit == 1 ? *reinterpret_cast<const float4*>(source)
                              : cluster_load(cluster_address(source, rank));
  }
  const float4 first = parts[0];
  sums[0] = first.x, sums[1] = first.y, sums[2] = first.z, sums[3] = first.w;
#pragma unroll
  for (int rank = 1; rank < kSplit; ++rank) {
    sums[0] += parts[rank].x, sums[1] += parts[rank].y;
    sums[2] += parts[rank].z, sums[3] += parts[rank].w;
  }
}

template <typename T, Gate kGate>
__device__ void gemm_finish(const Params& p, int64_t at, const float (&bias)[2][4],
                            const float (&sums)[4], const float (&second)[4],
                            const Vec<T, 4>& residual) {
  Vec<T, 4> out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = sums[i] + bias[0][i];
    const float up = second[i] + bias[1][i];
    if constexpr (kGate == Gate::kSilu) sum = silu(sum) * up;
    if constexpr (kGate == Gate::kOther) sum = activate(p.activation, sum) * up;
    if constexpr (kGate == Gate::kNone) sum += to_float(residual.values[i]);
    out.values[i] = from_float<T>(sum);
  }
  *reinterpret_cast<Vec<T, 4>*>(static_cast<T*>(p.y) + at) = out;
}

// Every block that shares K finishes its share of the tokens. A thread keeps its 4
// columns from token to token (finding them anew for each took 5 us of 20), and asks
// for what several tokens need before it finishes the first.
template <typename T, typename S, int kSplit, Gate kGate>
__device__ void gemm_write(const Params& p, const GemmWork& work, const float* shared) {
  constexpr bool kGated = kGate != Gate::kNone;
  constexpr int kWidth = kGated ? S::kHalf : 2 * S::kHalf;  // columns of y
  constexpr int kUnits = kWidth / 4, kTogether = S::kThreads / kUnits, kAtOnce = 4;
  const int unit = threadIdx.x % kUnits, first = threadIdx.x / kUnits;
  const int column = work.tile * kWidth + unit * 4;
  if (first >= kTogether || column >= p.columns) return;
  float bias[2][4] = {};
  add<T>(p.bias, column, bias[0]);
  if constexpr (kGated) add<T>(p.bias, p.columns + column, bias[1]);
  const int rank = kSplit == 1 ? 0 : work.rank;
  const int end = p.m * (rank + 1) / kSplit;
  for (int i = p.m * rank / kSplit + first; i < end; i += kAtOnce * kTogether) {
    float sums[kAtOnce][4], second[kAtOnce][4] = {};
    Vec<T, 4> residual[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int token = min(i + u * kTogether, end - 1);
      const float* source = shared + token * S::kPitch + unit * 4;
      if constexpr (!kGated) {
        residual[u] = residual_of<T, 4>(p, token, column);
      }
      gemm_gather<kSplit>(source, sums[u]);
      if constexpr (kGated) gemm_gather<kSplit>(source + S::kHalf, second[u]);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int token = i + u * kTogether;
      if (token >= end) break;
      const int64_t at = int64_t{token} * p.columns + column;
      gemm_finish<T, kGate>(p, at, bias, sums[u], second[u], residual[u]);
    }
  }
}

#endif

}  // namespace fdjax::matmul

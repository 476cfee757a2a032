// The GEMM on Hopper's tensor cores for more tokens than flat.cuh takes, up to 128.
//
// Tokens take the 64 rows of a wgmma tile, a warpgroup for each 64 of them, and a block
// multiplies all tokens with as many weight rows as give every SM the same work:
//
//   x      [M, K] --TMA--> ring of stages --wgmma, 64 tokens a warpgroup--> registers
//   weight [N, K] --TMA-->    in shared memory                                  |
//                  y [M, N] <-- sums over the cluster <-- shared memory <--------
//
// * Two blocks of neighbouring tiles are a cluster that shares x: each fetches half of
//   its tokens for both. That is no faster by itself, but takes less power, which
//   limits the clock.
// * Where N alone gives too few blocks, those of a cluster share the K of a tile.
// * A gated GEMM's tile has half gate rows, half up rows, so that the gate needs no
//   kernel of its own.
// * Weights do not depend on the kernel before: the ring has them before `pdl_wait`.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/gpu.h"
#include "fdjax/pdl.cuh"
#include "fdjax/wgmma.cuh"
#include "matmul/gemm_ring.cuh"
#include "matmul/gemm_sums.cuh"
#include "matmul/params.h"

namespace fdjax::matmul {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Multiplies a warpgroup's tokens of every stage of the ring into `sums`. Thread 0 also
// fills the ring: a warp for it would take registers from the sums.
template <typename T, int kN, int kSplit>
__device__ __forceinline__ void gemm_multiply(const GemmProducer<kN, kSplit>& producer,
                                              float (&sums)[kN / 2]) {
  using S = GemmShape<kN>;
  const GemmRing& ring = producer.ring;
  const int lane = threadIdx.x % 32;
  const uint32_t data = shared_address(ring.data);
  const uint32_t tokens = threadIdx.x / 128 * (64 * kRowBytes);
  const uint32_t empty =
      kSplit == 1 ? cluster_address(ring.empty, lane % kSharingX) : 0;
  Cursor place, previous;
  wgmma_pin(sums);
  for (int i = 0; i < producer.work.count; ++i) {
    mbarrier_wait(&ring.full[place.stage], place.parity);
    const uint32_t stage = data + place.stage * S::kStageBytes;
    const uint64_t a = wgmma_matrix(stage + tokens);
    const uint64_t b = wgmma_matrix(stage + S::kXBytes);
    add_stage<T, kN>(sums, a, b);
    if (i > 0) {
      if constexpr (kSplit == 1) {
        if (lane < kSharingX)
          mbarrier_arrive_cluster(empty + previous.stage * sizeof(uint64_t));
      } else {
        if (lane == 0) mbarrier_arrive(&ring.empty[previous.stage]);
      }
      if (threadIdx.x == 0) producer.refill(previous, i - 1);
    }
    previous = place;
    place.advance(ring.stages);
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
}
#endif

template <typename T, int kN, int kSplit>
__global__ void __launch_bounds__(GemmShape<kN>::kThreads, 1)
    gemm(FDJAX_GRID_CONSTANT const CUtensorMap weights,
         FDJAX_GRID_CONSTANT const CUtensorMap x, FDJAX_GRID_CONSTANT const Params p,
         const int stages) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using S = GemmShape<kN>;
  extern __shared__ unsigned char dynamic[];
  __shared__ uint64_t barriers[2 * kMaxStages];
  unsigned char* data = dynamic + (-shared_address(dynamic) & 1023);
  const GemmRing ring{data, barriers, barriers + kMaxStages, stages};
  const GemmWork work = gemm_work<kSplit>(p);
  const GemmProducer<kN, kSplit> producer{&weights, &x, p, work, ring};
  if (threadIdx.x == 0) producer.start();
  pdl_release();
  __syncthreads();
  if constexpr (kSplit == 1) {  // the other block's barriers are there
    cluster_arrive_relaxed();
    cluster_wait();
  }
  if (threadIdx.x == 0) producer.begin();
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = 0.0f;
  gemm_multiply<T>(producer, sums);
  __syncthreads();  // the ring is free
  float* shared = reinterpret_cast<float*>(data);
  gemm_store<S, kN>(sums, shared);
  pdl_wait();  // the residual, and the buffer of y, belong to kernels before
  if constexpr (kSplit == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
  if (!p.gated) {
    gemm_write<T, S, kSplit, Gate::kNone>(p, work, shared);
  } else if (p.activation == Activation::kSilu) {
    gemm_write<T, S, kSplit, Gate::kSilu>(p, work, shared);
  } else {
    gemm_write<T, S, kSplit, Gate::kOther>(p, work, shared);
  }
  cluster_arrive_relaxed();  // no block leaves while another needs its memory
  cluster_wait();
#endif
}

}  // namespace fdjax::matmul

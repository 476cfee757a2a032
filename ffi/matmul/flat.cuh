// The flat GEMM on Hopper's tensor cores, M up to 64.
//
// A flat GEMM is bound by reading the weights once. The operands are swapped: weight
// rows take the 64 rows of a wgmma tile and the tokens, padded to kM = 8, 16, 32 or 64,
// its columns: FlashDecoding++ (section 4) pads M to 8 for the same reason.
//
//   weight [N, K] --TMA--> ring of stages in shared memory --wgmma--> registers
//   x      [M, K] --TMA-->          (from L2)                            |
//                        y [M, N] <-- sums over the cluster <-- shared memory
//
// * One warp starts TMA copies of stages as fast as these become free; warpgroups of
//   four warps multiply. The ring keeps some 100 to 200 KB of each SM in flight, which
//   hides the latency of memory: the paper's double buffering, with more than two
//   buffers.
// * A block takes as many weight rows as give every SM the same work: tiles may have
//   fewer than 64 rows, and those of the last blocks 8 less. Where a whole K for each
//   block would still leave SMs idle, the blocks of a cluster share the K of one tile
//   (split-K) and add their sums through distributed shared memory, in the order of
//   their ranks: no workspace, no atomics, the same bits in every run.
// * The weights do not depend on the kernel before: the ring is filled with them before
//   `pdl_wait`.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/gpu.h"
#include "fdjax/mbarrier.cuh"
#include "fdjax/pdl.cuh"
#include "fdjax/wgmma.cuh"
#include "matmul/flat_load.cuh"
#include "matmul/flat_ring.cuh"
#include "matmul/flat_sums.cuh"
#include "matmul/params.h"

namespace fdjax::matmul {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Multiplies a warpgroup's tile and box of every stage of the ring into `sums`.
template <typename T, int kTiles, int kM, int kBoxes>
__device__ void consume(const Work& work, const Ring& ring, float (&sums)[kM / 2]) {
  using S = Shape<kTiles, kM, kBoxes>;
  const int group = threadIdx.x / 128;
  const bool speaker = threadIdx.x % 32 == 0;
  Cursor cursor;
  int previous = -1;  // the stage of the group before
  wgmma_pin(sums);
  for (int i = 0; i < work.count; ++i) {
    mbarrier_wait(&ring.full[cursor.stage], cursor.parity);
    const unsigned char* stage = ring.stage(cursor.stage);
    const uint64_t a = wgmma_matrix(shared_address(stage + group * ring.tile_bytes()));
    const uint64_t b = wgmma_matrix(shared_address(
        stage + S::kGroups * ring.tile_bytes() + group % kBoxes * S::kXBytes));
    add_stage<T, kM>(sums, a, b);
    if (previous >= 0 && speaker) mbarrier_arrive(&ring.empty[previous]);
    previous = cursor.stage;
    cursor.advance(ring.stages);
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
}

// All threads of the block or, if there are several, of the cluster's blocks.
__device__ inline void sync(int blocks) {
  if (blocks == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}
#endif

template <typename T, int kTiles, int kM, int kBoxes>
__global__ void __launch_bounds__(Shape<kTiles, kM, kBoxes>::kThreads,
                                  Shape<kTiles, kM, kBoxes>::kLeastBlocks)
    flat(FDJAX_GRID_CONSTANT const CUtensorMap weights,
         FDJAX_GRID_CONSTANT const CUtensorMap narrow,
         FDJAX_GRID_CONSTANT const CUtensorMap x, FDJAX_GRID_CONSTANT const Params p,
         FDJAX_GRID_CONSTANT const FlatKernelConfig config) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using S = Shape<kTiles, kM, kBoxes>;
  extern __shared__ unsigned char dynamic[];
  __shared__ uint64_t barriers[2 * kMaxStages];
  unsigned char* data = dynamic + (-shared_address(dynamic) & 1023);
  const Ring ring{.data = data,
                  .full = barriers,
                  .empty = barriers + kMaxStages,
                  .stages = config.stages,
                  .stage_bytes = S::stage_bytes(config.tile_rows),
                  .tile_rows = config.tile_rows};
  const Work work = work_of<S>(config, p.gated ? kTiles / 2 : kTiles);
  const CUtensorMap* tiles = work.tile_rows < config.tile_rows ? &narrow : &weights;
  const Producer<kTiles, kM, kBoxes> producer{tiles, &x, p, work, ring};
  const bool producing = threadIdx.x == S::kConsumers;
  if (producing) producer.start();
  pdl_release();
  __syncthreads();

  float* shared = reinterpret_cast<float*>(data);
  if (threadIdx.x < S::kConsumers) {
    float sums[kM / 2] = {};
    consume<T, kTiles, kM, kBoxes>(work, ring, sums);
    asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers) : "memory");  // ring is free
    const int group = threadIdx.x / 128;
    store_sums<kM>(sums,
                   shared + group % kBoxes * (S::kSumBytes / 4 / kBoxes) +
                       group / kBoxes * kTileRows,
                   S::kPitch);
  } else if (producing) {
    producer.run();
  }
  __syncwarp();
  pdl_wait();  // the residual, and the buffer of y, belong to kernels before
  Writer<T, kTiles, kM, kBoxes> writer(p, work, config);
  sync(config.splits);
  writer.run(shared);
  if (config.splits > 1) {  // no block leaves while another reads its sums
    cluster_arrive_relaxed();
    cluster_wait();
  }
#endif
}

}  // namespace fdjax::matmul

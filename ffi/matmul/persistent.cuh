// The GEMM on Hopper's tensor cores for prompts: any number of tokens.
//
//   x      [M, K] --TMA--> ring of stages --wgmma, 64 tokens a warpgroup--> registers
//   weight [N, K] --TMA-->    in shared memory                                  |
//                  y [M, N] <--TMA-- shared memory <--stmatrix, bias, gate, + ---
//
// * Every SM has one block, which computes tile after tile: while two warpgroups finish
//   a tile, the warp that loads has the first stages of the next in the ring.
// * Two blocks are a cluster with tiles side by side, of which one operand is the same:
//   each fetches half of it for both.
// * A tile's residual is fetched to where its y will lie, while it is multiplied.
// * A gated GEMM's tile has half gate rows, half up rows. A thread has the sums of
//   both, and what is twice as wide never exists.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/gpu.h"
#include "fdjax/pdl.cuh"
#include "fdjax/wgmma.cuh"
#include "matmul/persistent_ring.cuh"
#include "matmul/persistent_store.cuh"

namespace fdjax::matmul {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What a warpgroup does that multiplies.
template <typename T, int kN, Gate kGate>
struct PersistentConsumer {
  static constexpr bool kGated = kGate != Gate::kNone;
  using S = PersistentShape<kN, kGated>;
  using Barriers = PersistentBarriers<S::kStages>;

  const PersistentMaps& maps;
  const Params& p;
  Barriers& barriers;
  uint32_t ring;
  uint32_t out;  // this warpgroup's boxes
  int group;

  __device__ bool is_first() const { return threadIdx.x % 128 == 0; }

  // All of this warp have read a stage, which the other block fills too.
  __device__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (lane < kPair)
      mbarrier_arrive_cluster(cluster_address(&barriers.empty[stage], lane));
  }

  // y's place may be written anew: the copies of the tile before have read it.
  __device__ void free_out() const {
    if (!is_first()) return;
    tma_store_wait_read();
    mbarrier_arrive(&barriers.out_free);
  }

  // `idle`: the tile has no tokens for this warpgroup.
  __device__ __forceinline__ void multiply(float (&sums)[kN / 2], Cursor& place,
                                           int depth, bool idle) const {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[i] = 0.0f;
    wgmma_pin(sums);
    int previous = 0;
#pragma unroll 1  // what several rounds share would not fit beside the sums
    for (int i = 0; i < depth; ++i) {
      mbarrier_wait(&barriers.full[place.stage], place.parity);
      const uint32_t stage = ring + place.stage * S::kStageBytes;
      if (!idle) {
        add_stage<T, kN>(sums, wgmma_matrix(stage + group * S::kHalfXBytes),
                         wgmma_matrix(stage + S::kXBytes));
      }
      if (i > 0) release(previous);
      if (i == 1) free_out();
      previous = place.stage;
      place.advance(S::kStages);
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release(previous);
    if (depth == 1) free_out();
  }

  // From the sums to y, whose boxes TMA copies while the next tile is multiplied.
  __device__ void finish(const float (&sums)[kN / 2], const Tile& tile,
                         uint32_t parity) const {
    const int column = tile.columns * S::kColumns;
    const int row = tile.tokens * S::kTokens + group * 64;
    if (!kGated && p.residual != nullptr) {
      mbarrier_wait(&barriers.residual, parity);
    } else {
      warpgroup_sync(group);  // the first thread has seen y's place free
    }
    PersistentEnd<T, kN, kGate>{p, out, column}.write(sums);
    async_proxy_fence();
    warpgroup_sync(group);
    if (!is_first()) return;
    for (int box = 0; box < S::kBoxes; ++box) {
      tma_store(&maps.y, column + box * 64, row, out + box * S::kBoxBytes);
    }
    tma_store_commit();
  }

  __device__ void run(const TileOrder& order, int rank, int cluster,
                      int num_clusters) const {
    const int depth = (p.k + kTileColumns - 1) / kTileColumns;
    Cursor place;
    uint32_t parity = 0;
    for (int index = cluster; index < order.count(); index += num_clusters) {
      const Tile tile = order.tile(index, rank);
      const bool idle = tile.tokens * S::kTokens + group * 64 >= p.m;
      float sums[kN / 2];
      multiply(sums, place, depth, idle);
      finish(sums, tile, parity);
      parity ^= 1;
    }
    if (is_first()) tma_store_wait();
  }
};

#endif

template <typename T, int kN, Gate kGate>
__global__ void __launch_bounds__(PersistentShape<kN, kGate != Gate::kNone>::kThreads,
                                  1)
    persistent(FDJAX_GRID_CONSTANT const PersistentMaps maps,
               FDJAX_GRID_CONSTANT const Params p,
               FDJAX_GRID_CONSTANT const TileOrder order) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr bool kGated = kGate != Gate::kNone;
  using S = PersistentShape<kN, kGated>;
  extern __shared__ unsigned char dynamic[];
  __shared__ PersistentBarriers<S::kStages> barriers;
  unsigned char* ring = dynamic + (-shared_address(dynamic) & 1023);
  unsigned char* out = ring + S::kStages * S::kStageBytes;
  const int rank = blockIdx.x % kPair, cluster = blockIdx.x / kPair;
  const int num_clusters = gridDim.x / kPair;
  // By a shuffle the compiler knows it to be the same in all of a warp.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const PersistentProducer<kN, kGated> producer{maps, p,   order, barriers,
                                                ring, out, rank};
  if (threadIdx.x == 0) producer.prepare();
  pdl_release();
  cluster_arrive();  // the other block's barriers are there
  cluster_wait();
  if (group == S::kConsumers) {
    release_registers<40>();
    if (threadIdx.x % 128 == 0) producer.run(cluster, num_clusters);
  } else {
    acquire_registers<232>();
    const PersistentConsumer<T, kN, kGate> consumer{
        maps,
        p,
        barriers,
        shared_address(ring),
        shared_address(out) + group * S::kBoxes * S::kBoxBytes,
        group};
    consumer.run(order, rank, cluster, num_clusters);
  }
  __syncwarp();
  cluster_arrive_relaxed();  // no block leaves while another needs its memory
  cluster_wait();
#endif
}

}  // namespace fdjax::matmul

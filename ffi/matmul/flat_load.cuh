// The flat GEMM's producer: the warp that starts the TMA copies of stages.
#pragma once

#include <cuda.h>

#include "fdjax/mbarrier.cuh"
#include "fdjax/pdl.cuh"
#include "fdjax/tma.cuh"
#include "matmul/flat_ring.cuh"

namespace fdjax::matmul {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int kTiles, int kM, int kBoxes>
struct Producer {
  using S = Shape<kTiles, kM, kBoxes>;
  const CUtensorMap* weights;
  const CUtensorMap* x;
  const Params& p;
  const Work& work;
  const Ring& ring;

  // Tile t holds the next rows; of a gated GEMM, the second half are up rows.
  __device__ int row_of(int t) const {
    constexpr int kHalf = kTiles / 2;
    if (!p.gated || t < kHalf) return work.row + t * work.tile_rows;
    return p.columns + work.row + (t - kHalf) * work.tile_rows;
  }

  // That arrive in a stage: narrow tiles leave the room of their last rows as it is.
  __device__ int bytes() const {
    return ring.stage_bytes -
           S::kGroups * (ring.tile_rows - work.tile_rows) * kRowBytes;
  }

  __device__ void load_weights(int stage, int depth) const {
    unsigned char* target = ring.stage(stage);
    mbarrier_arrive_expect(&ring.full[stage], bytes());
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        tma_load(target + (t * kBoxes + box) * ring.tile_bytes(), weights,
                 depth * S::kColumns + box * kTileColumns, row_of(t), &ring.full[stage],
                 CachePolicy::kEvictFirst);
      }
    }
  }

  __device__ void load_x(int stage, int depth) const {
    unsigned char* target = ring.stage(stage) + S::kGroups * ring.tile_bytes();
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      tma_load(target + box * S::kXBytes, x, depth * S::kColumns + box * kTileColumns,
               0, &ring.full[stage], CachePolicy::kEvictLast);
    }
  }

  // The first filling of the ring, as far as it depends on nothing.
  __device__ void start() const {
    prefetch_tensor_map(weights);
    prefetch_tensor_map(x);
    for (int s = 0; s < ring.stages; ++s) {
      mbarrier_init(&ring.full[s], 1);
      mbarrier_init(&ring.empty[s], S::kConsumers / 32);
    }
    mbarrier_init_fence();
    const int count = min(ring.stages, work.count);
    for (int s = 0; s < count; ++s) load_weights(s, work.depth(s));
  }

  __device__ void run() const {
    const int count = min(ring.stages, work.count);
    pdl_wait();
    for (int s = 0; s < count; ++s) load_x(s, work.depth(s));
    Cursor cursor;
    for (int i = count; i < work.count; ++i) {
      mbarrier_wait(&ring.empty[cursor.stage], cursor.parity);
      load_weights(cursor.stage, work.depth(i));
      load_x(cursor.stage, work.depth(i));
      cursor.advance(ring.stages);
    }
  }
};

#endif

}  // namespace fdjax::matmul

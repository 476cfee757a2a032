// What each block of gemm.cuh computes, and the ring of stages in shared memory that it
// fills.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/mbarrier.cuh"
#include "fdjax/pdl.cuh"
#include "fdjax/tma.cuh"
#include "matmul/params.h"
#include "matmul/stage.cuh"

namespace fdjax::matmul {

inline constexpr int kSharingX = 2;  // blocks of a cluster where K is not split

// Sizes of a block: a stage holds all tokens and kN weight rows, 64 columns of both.
// Every 64 tokens have a warpgroup.
template <int kN>
struct GemmShape {
  static constexpr int kTokens = kMaxGemmTokens;
  static constexpr int kThreads = kTokens * 2;
  static constexpr int kXBytes = kTokens * kRowBytes;
  static constexpr int kHalf = kN / 2;  // of a gated GEMM: its gate rows, or up rows
  static constexpr int kHalfBytes = kHalf * kRowBytes;
  static constexpr int kStageBytes = kXBytes + 2 * kHalfBytes;
  // Sums, [kTokens][kPitch] floats: a pitch of 8 or 24 modulo 32 spreads the
  // accumulators' layout over all banks.
  static constexpr int kPitch = kN + 8;
  static constexpr int kSumBytes = kTokens * kPitch * 4;

  // The sums reuse the ring.
  __host__ __device__ static constexpr int bytes(int stages) {
    const int ring = stages * kStageBytes;
    return (ring > kSumBytes ? ring : kSumBytes) + 1024;  // to align the ring
  }
};

// Which part of the GEMM a block computes. The kSplit blocks of a cluster share the
// K of a tile; without a split (1) the two of a cluster are tiles side by side.
struct GemmWork {
  int rank;          // in the cluster
  int tile;          // of weight rows
  int begin, count;  // stages along K
};

template <int kSplit>
__device__ GemmWork gemm_work(const Params& p) {
  const int depth = (p.k + kTileColumns - 1) / kTileColumns;
  const int rank = blockIdx.x, row = blockIdx.y;
  if constexpr (kSplit == 1) return {rank, row * kSharingX + rank, 0, depth};
  const int begin = depth * rank / kSplit;
  return {rank, row, begin, depth * (rank + 1) / kSplit - begin};
}

struct GemmRing {
  unsigned char* data;
  uint64_t* full;   // a stage's bytes have arrived
  uint64_t* empty;  // all have read it, those of the block that shares x too
  int stages;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What one thread does: it starts the TMA copies of stages.
template <int kN, int kSplit>
struct GemmProducer {
  using S = GemmShape<kN>;
  const CUtensorMap* weights;
  const CUtensorMap* x;
  const Params& p;
  const GemmWork& work;
  const GemmRing& ring;

  // Half of a tile's rows, then the others; of a gated GEMM gate rows, then up rows.
  __device__ void load_weights(int stage, int depth) const {
    unsigned char* target = ring.data + stage * S::kStageBytes + S::kXBytes;
    const int first = work.tile * (p.gated ? S::kHalf : kN);
    const int second = first + (p.gated ? p.columns : S::kHalf);
    uint64_t* full = &ring.full[stage];
    mbarrier_arrive_expect(full, S::kStageBytes);
    tma_load(target, weights, depth * kTileColumns, first, full,
             CachePolicy::kEvictFirst);
    tma_load(target + S::kHalfBytes, weights, depth * kTileColumns, second, full,
             CachePolicy::kEvictFirst);
  }

  // Of blocks that share x each fetches a part of the tokens for all.
  __device__ void load_x(int stage, int depth) const {
    constexpr uint16_t kAll = (1 << kSharingX) - 1;
    unsigned char* target = ring.data + stage * S::kStageBytes;
    if constexpr (kSplit == 1) {
      tma_load_to(kAll, target + work.rank * (S::kXBytes / kSharingX), x,
                  depth * kTileColumns, work.rank * (S::kTokens / kSharingX),
                  &ring.full[stage], CachePolicy::kEvictLast);
    } else {
      tma_load(target, x, depth * kTileColumns, 0, &ring.full[stage],
               CachePolicy::kEvictLast);
    }
  }

  // The first filling of the ring, as far as it depends on nothing.
  __device__ void start() const {
    prefetch_tensor_map(weights);
    prefetch_tensor_map(x);
    for (int s = 0; s < ring.stages; ++s) {
      mbarrier_init(&ring.full[s], 1);
      mbarrier_init(&ring.empty[s], S::kThreads / 32 * (kSplit == 1 ? kSharingX : 1));
    }
    mbarrier_init_fence();
    const int count = min(ring.stages, work.count);
    for (int s = 0; s < count; ++s) load_weights(s, work.begin + s);
  }

  // Its tokens.
  __device__ void begin() const {
    pdl_wait();
    const int count = min(ring.stages, work.count);
    for (int s = 0; s < count; ++s) load_x(s, work.begin + s);
  }

  // Fills the place of the i-th stage, once all have read it.
  __device__ void refill(const Cursor& place, int i) const {
    const int next = i + ring.stages;
    if (next >= work.count) return;
    mbarrier_wait(&ring.empty[place.stage], place.parity);
    load_weights(place.stage, work.begin + next);
    load_x(place.stage, work.begin + next);
  }
};

#endif

}  // namespace fdjax::matmul

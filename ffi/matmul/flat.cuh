// B: the flat product on Hopper's tensor cores, M up to 64.
//
// A flat product is bound by reading the weights once. The operands are swapped: weight
// rows take the 64 rows of a wgmma tile and the tokens, padded to kM = 8, 16, 32 or 64,
// its columns, so that no more than 7 columns are padding (FlashDecoding++ section 4
// pads M to 8 for the same reason).
//
//   weight [N, K] --TMA--> ring of stages in shared memory --wgmma--> registers
//   x      [M, K] --TMA-->          (from L2)                            |
//                          y [M, N] <-- sums over the cluster <-- shared memory
//
// * One warp asks the copy engine for stages as fast as they become free; four warps
//   multiply. A stage is kTiles tiles of 64 weight rows and the x of the same 64
//   columns. The ring (tens of KB of each multiprocessor in flight) hides the latency of
//   memory: this is the paper's double buffering with more than two buffers.
// * Where there are too few tiles for the machine, the blocks of a cluster share the K
//   of one tile (split-K) and add their partial sums through distributed shared memory,
//   always in the order of their ranks: no workspace, no atomics, the same bits each run.
// * The weights do not depend on the kernel before: the ring is filled with them before
//   `pdl_wait`.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/gpu.h"
#include "fdjax/mbarrier.cuh"
#include "fdjax/pdl.cuh"
#include "fdjax/tma.cuh"
#include "fdjax/wgmma.cuh"
#include "matmul/epilogue.cuh"
#include "matmul/params.h"

namespace fdjax::matmul {

inline constexpr int kTileRows = 64;     // of weights: the M of wgmma
inline constexpr int kTileColumns = 64;  // along K: one row of the 128 byte swizzle
inline constexpr int kTileBytes = kTileRows * kTileColumns * 2;
inline constexpr int kMaxStages = 16;
#ifndef CHAINS
#define CHAINS 2
#endif
#ifndef WPOLICY
#define WPOLICY kEvictFirst
#endif
inline constexpr int kChains = CHAINS;  // independent accumulators of a warpgroup

// Sizes of a block: kTiles tiles of 64 weight rows, kM tokens, kBoxes * 64 columns of
// both in a stage.
template <int kTiles, int kM, int kBoxes>
struct Shape {
  static constexpr int kConsumers = kTiles * 128;  // a warpgroup for each tile
  static constexpr int kThreads = kConsumers + 32;  // and the producer's warp
  static constexpr int kRows = kTiles * kTileRows;
  static constexpr int kColumns = kBoxes * kTileColumns;
  static constexpr int kWeightBytes = kTiles * kBoxes * kTileBytes;
  static constexpr int kBoxBytes = kM * kTileColumns * 2;  // of x
  static constexpr int kStageBytes = kWeightBytes + kBoxes * kBoxBytes;
  // Partial sums, [kM][kPitch] floats: a pitch of 4 modulo 32 spreads the accumulators'
  // layout over all banks.
  static constexpr int kPitch = kRows + 4;
  static constexpr int kSumBytes = kM * kPitch * 4;

  // The partial sums reuse the ring.
  static constexpr int bytes(int stages) {
    const int ring = stages * kStageBytes;
    return (ring > kSumBytes ? ring : kSumBytes) + 1024;  // to align the ring
  }
};

// Which part of the product a block computes.
struct Work {
  int row;         // first weight row; of the gate, if gated
  int begin, end;  // stages along K
};

template <typename S>
__device__ Work work_of(const Params& p) {
  const int depth = (p.k + S::kColumns - 1) / S::kColumns;
  const int rows = S::kRows / (p.gated ? 2 : 1);
  const int rank = blockIdx.x, splits = gridDim.x;
  return {static_cast<int>(blockIdx.y) * rows, depth * rank / splits,
          depth * (rank + 1) / splits};
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct Ring {
  unsigned char* data;
  uint64_t* full;   // a stage's bytes have arrived
  uint64_t* empty;  // the consumers are done with it
  int stages;
};

// A position in the ring: which stage, and the parity of its current use.
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kTiles, int kM, int kBoxes>
struct Producer {
  using S = Shape<kTiles, kM, kBoxes>;
  const CUtensorMap* weights;
  const CUtensorMap* x;
  const Params& p;
  const Work& work;
  const Ring& ring;

  // Tile t holds the next 64 rows; of a gated product, the second half are up rows.
  __device__ int row_of(int t) const {
    constexpr int kHalf = kTiles / 2;
    if (!p.gated || t < kHalf) return work.row + t * kTileRows;
    return p.columns + work.row + (t - kHalf) * kTileRows;
  }

  __device__ void load_weights(int stage, int depth) const {
    unsigned char* target = ring.data + stage * S::kStageBytes;
    mbarrier_arrive_expect(&ring.full[stage], S::kStageBytes);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        tma_load(target + (t * kBoxes + box) * kTileBytes, weights,
                 depth * S::kColumns + box * kTileColumns, row_of(t), &ring.full[stage],
                 CachePolicy::WPOLICY);
      }
    }
  }

  __device__ void load_x(int stage, int depth) const {
    unsigned char* target = ring.data + stage * S::kStageBytes + S::kWeightBytes;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      tma_load(target + box * S::kBoxBytes, x, depth * S::kColumns + box * kTileColumns,
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
    const int count = min(ring.stages, work.end - work.begin);
    for (int s = 0; s < count; ++s) load_weights(s, work.begin + s);
  }

  __device__ void run() const {
    const int count = min(ring.stages, work.end - work.begin);
    pdl_wait();
    for (int s = 0; s < count; ++s) load_x(s, work.begin + s);
    Cursor cursor;
    for (int depth = work.begin + count; depth < work.end; ++depth) {
      mbarrier_wait(&ring.empty[cursor.stage], cursor.parity);
      load_weights(cursor.stage, depth);
      load_x(cursor.stage, depth);
      cursor.advance(ring.stages);
    }
  }
};

// Multiplies a warpgroup's tile of every stage of the ring into `sums`.
template <typename T, int kTiles, int kM, int kBoxes>
__device__ void consume(const Work& work, const Ring& ring,
                        float (&sums)[kChains][kM / 2]) {
  using S = Shape<kTiles, kM, kBoxes>;
  const int tile = threadIdx.x / 128;
  const bool speaker = threadIdx.x % 32 == 0;
  Cursor cursor;
  int previous = -1;  // the stage of the group before
  for (int depth = work.begin; depth < work.end; ++depth) {
    mbarrier_wait(&ring.full[cursor.stage], cursor.parity);
    const unsigned char* stage = ring.data + cursor.stage * S::kStageBytes;
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const uint64_t a = wgmma_matrix(stage + (tile * kBoxes + box) * kTileBytes);
      const uint64_t b = wgmma_matrix(stage + S::kWeightBytes + box * S::kBoxBytes);
#pragma unroll
      for (int step = 0; step < kTileColumns / 16; ++step) {
        Wgmma<T, kM>::add(sums[step % kChains], a + step * kWgmmaStepK,
                          b + step * kWgmmaStepK);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (previous >= 0 && speaker) mbarrier_arrive(&ring.empty[previous]);
    previous = cursor.stage;
    cursor.advance(ring.stages);
  }
  wgmma_wait<0>();
}

// From the accumulators' layout to [kM][kPitch], tokens by weight rows.
template <int kM>
__device__ void store_sums(const float (&sums)[kChains][kM / 2], float* shared,
                           int pitch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kM / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    float sum = sums[0][i];
#pragma unroll
    for (int chain = 1; chain < kChains; ++chain) sum += sums[chain][i];
    shared[column * pitch + row] = sum;
  }
}

// Adds the cluster's partial sums of 8 weight rows of a token, rank by rank.
__device__ inline void gather(const float* shared, int splits, float (&sums)[8]) {
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int rank = 0; rank < splits; ++rank) {
    const uint32_t address = cluster_address(shared, rank);
    const float4 low = cluster_load(address), high = cluster_load(address + 16);
    sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
    sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
  }
}

// Every block of the cluster finishes its share of the tile.
template <typename T, typename S>
__device__ void write_tile(const Params& p, const Work& work, const float* shared) {
  const int rank = blockIdx.x, splits = gridDim.x;
  const int rows = S::kRows / (p.gated ? 2 : 1);
  const int units = rows / 8;  // of a token
  const int total = units * p.m;
  const int begin = total * rank / splits, end = total * (rank + 1) / splits;
  for (int i = begin + threadIdx.x; i < end; i += S::kThreads) {
    const int token = i / units, row = i % units * 8;
    const int column = work.row + row;
    if (column >= p.columns) continue;
    const float* source = shared + token * S::kPitch + row;
    float sums[8], second[8];
    gather(source, splits, sums);
    if (p.gated) gather(source + rows, splits, second);
    finish<T>(p, token, column, sums, second);
  }
}

#endif

template <typename T, int kTiles, int kM, int kBoxes>
__global__ void __launch_bounds__(Shape<kTiles, kM, kBoxes>::kThreads)
    flat(FDJAX_GRID_CONSTANT const CUtensorMap weights,
         FDJAX_GRID_CONSTANT const CUtensorMap x, FDJAX_GRID_CONSTANT const Params p,
         int stages) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using S = Shape<kTiles, kM, kBoxes>;
  extern __shared__ unsigned char dynamic[];
  __shared__ uint64_t barriers[2 * kMaxStages];
  unsigned char* data = dynamic + (-shared_address(dynamic) & 1023);
  const Ring ring{data, barriers, barriers + kMaxStages, stages};
  const Work work = work_of<S>(p);
  const Producer<kTiles, kM, kBoxes> producer{&weights, &x, p, work, ring};
  const bool producing = threadIdx.x == S::kConsumers;
  if (producing) producer.start();
  pdl_release();
  __syncthreads();

  float* shared = reinterpret_cast<float*>(data);
  if (threadIdx.x < S::kConsumers) {
    float sums[kChains][kM / 2] = {};
    consume<T, kTiles, kM, kBoxes>(work, ring, sums);
    asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers) : "memory");  // ring is free
    store_sums<kM>(sums, shared, S::kPitch);
  } else if (producing) {
    producer.run();
  }
  __syncwarp();
  pdl_wait();  // the residual, and the buffer of y, belong to kernels before
  cluster_arrive();
  cluster_wait();
  write_tile<T, S>(p, work, shared);
  cluster_arrive();  // no block leaves while another may read its sums
  cluster_wait();
#endif
}

}  // namespace fdjax::matmul

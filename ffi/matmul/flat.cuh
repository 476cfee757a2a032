// B: the flat product on Hopper's tensor cores, M up to 64.
//
// A flat product is bound by reading the weights once. The operands are swapped: weight
// rows take the 64 rows of a wgmma tile and the tokens, padded to kM = 8, 16, 32 or 64,
// its columns: FlashDecoding++ (section 4) pads M to 8 for the same reason.
//
//   weight [N, K] --TMA--> ring of stages in shared memory --wgmma--> registers
//   x      [M, K] --TMA-->          (from L2)                            |
//                        y [M, N] <-- sums over the cluster <-- shared memory
//
// * One warp asks the copy engine for stages as fast as they become free; warpgroups of
//   four warps multiply. The ring keeps some 100 to 200 KB of each multiprocessor in
//   flight, which hides the latency of memory: the paper's double buffering, with more
//   than two buffers.
// * A block takes as many weight rows as give every multiprocessor the same work: tiles
//   may have fewer than 64 rows. Where a whole K for each block would still leave
//   multiprocessors idle, the blocks of a cluster share the K of one tile (split-K) and
//   add their sums through distributed shared memory, in the order of their ranks: no
//   workspace, no atomics, the same bits in every run.
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
inline constexpr int kRowBytes = kTileColumns * 2;
inline constexpr int kMaxStages = 16;

// Sizes of a block: a stage holds kTiles tiles of weight rows and kM tokens, kBoxes
// times 64 columns of both. Every (tile, box) has a warpgroup of its own, so that as
// many chains of dependent wgmmas run at once.
template <int kTiles, int kM, int kBoxes>
struct Shape {
  static constexpr int kGroups = kTiles * kBoxes;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 32;  // and the producer's warp
  static constexpr int kColumns = kBoxes * kTileColumns;
  // Blocks start at different places along K, so that they do not all ask for the same
  // columns of rows that lie a power of two apart: 1 % faster. With much x, it costs
  // more than that to find x at many places of L2 at once.
  static constexpr bool kRotate = kM <= 16;
  static constexpr int kXBytes = kM * kRowBytes;  // of a box
  // Partial sums, [kBoxes][kM][kPitch] floats: a pitch of 4 modulo 32 spreads the
  // accumulators' layout over all banks.
  static constexpr int kPitch = kTiles * kTileRows + 4;
  static constexpr int kSumBytes = kBoxes * kM * kPitch * 4;

  __host__ __device__ static constexpr int stage_bytes(int tile_rows) {
    return kGroups * tile_rows * kRowBytes + kBoxes * kXBytes;
  }

  // The partial sums reuse the ring. wgmma always reads 64 rows, beyond those of a
  // shorter tile too (their results are ignored).
  __host__ __device__ static constexpr int bytes(int stages, int tile_rows) {
    const int ring =
        stages * stage_bytes(tile_rows) + (kTileRows - tile_rows) * kRowBytes;
    return (ring > kSumBytes ? ring : kSumBytes) + 1024;  // to align the ring
  }
};

// Which part of the product a block computes.
struct Work {
  int row;           // first weight row; of the gate, if gated
  int begin, count;  // stages along K
  int shift;         // where along them this block starts

  // The place along K of the block's i-th stage.
  __device__ int depth(int i) const {
    const int at = i + shift;
    return begin + (at < count ? at : at - count);
  }
};

template <typename S>
__device__ Work work_of(const Params& p, int rows) {
  const int depth = (p.k + S::kColumns - 1) / S::kColumns;
  const int rank = blockIdx.x, splits = gridDim.x, tile = blockIdx.y;
  const int begin = depth * rank / splits;
  const int count = depth * (rank + 1) / splits - begin;
  return {tile * rows, begin, count, S::kRotate && count > 0 ? tile * 5 % count : 0};
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct Ring {
  unsigned char* data;
  uint64_t* full;   // a stage's bytes have arrived
  uint64_t* empty;  // the consumers are done with it
  int stages;
  int stage_bytes;
  int tile_rows;

  __device__ unsigned char* stage(int i) const { return data + i * stage_bytes; }
  __device__ int tile_bytes() const { return tile_rows * kRowBytes; }
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

  // Tile t holds the next rows; of a gated product, the second half are up rows.
  __device__ int row_of(int t) const {
    constexpr int kHalf = kTiles / 2;
    if (!p.gated || t < kHalf) return work.row + t * ring.tile_rows;
    return p.columns + work.row + (t - kHalf) * ring.tile_rows;
  }

  __device__ void load_weights(int stage, int depth) const {
    unsigned char* target = ring.stage(stage);
    mbarrier_arrive_expect(&ring.full[stage], ring.stage_bytes);
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
    const uint64_t a = wgmma_matrix(stage + group * ring.tile_bytes());
    const uint64_t b = wgmma_matrix(stage + S::kGroups * ring.tile_bytes() +
                                    group % kBoxes * S::kXBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileColumns / 16; ++step) {
      Wgmma<T, kM>::add(sums, a + step * kWgmmaStepK, b + step * kWgmmaStepK);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (previous >= 0 && speaker) mbarrier_arrive(&ring.empty[previous]);
    previous = cursor.stage;
    cursor.advance(ring.stages);
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
}

// From the accumulators' layout to [kM][kPitch], tokens by weight rows.
template <int kM>
__device__ void store_sums(const float (&sums)[kM / 2], float* shared, int pitch) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kM / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    shared[column * pitch + row] = sums[i];
  }
}

__device__ inline void accumulate(const float4& low, const float4& high,
                                  float (&sums)[8]) {
  sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
  sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
}

// Adds the partial sums of 8 weight rows of a token: those of every block of the
// cluster, rank by rank, and in a block those of every box.
template <typename S, int kBoxes>
__device__ void gather(const float* shared, int splits, float (&sums)[8]) {
  constexpr int kBoxFloats = S::kSumBytes / 4 / kBoxes;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  if (splits == 1) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const auto* source = reinterpret_cast<const float4*>(shared + box * kBoxFloats);
      accumulate(source[0], source[1], sums);
    }
    return;
  }
#pragma unroll 2
  for (int rank = 0; rank < splits; ++rank) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const uint32_t source = cluster_address(shared + box * kBoxFloats, rank);
      accumulate(cluster_load(source), cluster_load(source + 16), sums);
    }
  }
}

// Every block of the cluster finishes its share of the rows.
template <typename T, int kTiles, int kM, int kBoxes>
__device__ void write_rows(const Params& p, const Work& work, int tile_rows,
                           const float* shared) {
  using S = Shape<kTiles, kM, kBoxes>;
  const int rank = blockIdx.x, splits = gridDim.x;
  const int units = (p.gated ? kTiles / 2 : kTiles) * tile_rows / 8;  // of a token
  const int total = units * p.m;
  const int begin = total * rank / splits, end = total * (rank + 1) / splits;
  for (int i = begin + threadIdx.x; i < end; i += S::kThreads) {
    const int token = i / units, row = i % units * 8;
    const int column = work.row + row;
    if (column >= p.columns) continue;
    const float* source =
        shared + token * S::kPitch + row / tile_rows * kTileRows + row % tile_rows;
    float sums[8], second[8];
    gather<S, kBoxes>(source, splits, sums);
    if (p.gated) gather<S, kBoxes>(source + kTiles / 2 * kTileRows, splits, second);
    finish<T>(p, token, column, sums, second);
  }
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
__global__ void __launch_bounds__(Shape<kTiles, kM, kBoxes>::kThreads)
    flat(FDJAX_GRID_CONSTANT const CUtensorMap weights,
         FDJAX_GRID_CONSTANT const CUtensorMap x, FDJAX_GRID_CONSTANT const Params p,
         FDJAX_GRID_CONSTANT const FlatConfig config) {
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
  const int rows = (p.gated ? kTiles / 2 : kTiles) * config.tile_rows;
  const Work work = work_of<S>(p, rows);
  const Producer<kTiles, kM, kBoxes> producer{&weights, &x, p, work, ring};
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
  const int splits = gridDim.x;
  sync(splits);
  write_rows<T, kTiles, kM, kBoxes>(p, work, config.tile_rows, shared);
  if (splits > 1) sync(splits);  // no block leaves while another reads its sums
#endif
}

}  // namespace fdjax::matmul

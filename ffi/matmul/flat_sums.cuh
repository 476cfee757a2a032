// B's end: from the accumulators of all blocks of a cluster to rows of y.
#pragma once

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "matmul/epilogue.cuh"
#include "matmul/flat_ring.cuh"

namespace fdjax::matmul {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

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

// 8 weight rows of a token, of those that a block finishes.
template <typename T>
struct Unit {
  int token, column;     // of y
  const float* source;   // in the block's sums
  bool wanted;           // a place of y
  Vec<T, 8> residual{};  // on its way while the sums are fetched

  template <typename S>
  __device__ void find(S, const Params& p, const Work& work, const FlatCut& cut,
                       const float* shared, int i) {
    token = quotient(i, cut.units);
    const int row = (i - token * static_cast<int>(cut.units.value)) * 8;
    const int beyond = row >= cut.tile_rows ? kTileRows - cut.tile_rows : 0;  // tile 1
    column = work.row + row;
    source = shared + token * S::kPitch + row + beyond;
    wanted = column < p.columns;
    if (wanted) residual = residual_of<T, 8>(p, token, column);
  }
};

// Every block of the cluster finishes its share of the rows. With 64 tokens a thread
// has two units, and asks for what both need before it finishes the first.
template <typename T, int kTiles, int kM, int kBoxes>
__device__ void write_rows(const Params& p, const Work& work, const FlatCut& cut,
                           const float* shared) {
  using S = Shape<kTiles, kM, kBoxes>;
  constexpr int kAtOnce = kM < 64 ? 1 : 2;
  const int rank = blockIdx.x, splits = cut.splits, end = cut.shares[rank + 1];
  for (int i = cut.shares[rank] + threadIdx.x; i < end; i += kAtOnce * S::kThreads) {
    Unit<T> units[kAtOnce];
    float sums[kAtOnce][8], second[kAtOnce][8];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int at = i + u * S::kThreads;
      units[u].find(S{}, p, work, cut, shared, u == 0 ? at : min(at, end - 1));
      units[u].wanted &= at < end;
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const float* const source = units[u].source;
      gather<S, kBoxes>(source, splits, sums[u]);
      if (p.gated) {
        gather<S, kBoxes>(source + kTiles / 2 * kTileRows, splits, second[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const Unit<T>& unit = units[u];
      if (!unit.wanted) continue;
      finish<T>(p, unit.token, unit.column, sums[u], second[u], unit.residual);
    }
  }
}

#endif

}  // namespace fdjax::matmul

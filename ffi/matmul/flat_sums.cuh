// The flat GEMM's end: from the accumulators of all blocks of a cluster to rows of y.
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

// Finishes a block's share of the rows, 8 weight rows of a token at a time. What does
// not wait for the sums is found and asked for before them. With 64 tokens a thread has
// two such units, and asks for what both need before it finishes the first.
template <typename T, int kTiles, int kM, int kBoxes>
class Writer {
 public:
  // After the kernel before has ended: it makes the residual.
  __device__ Writer(const Params& p, const Work& work, const FlatKernelConfig& config)
      : p_(p), work_(work), config_(config) {
    end_ = config.shares[blockIdx.x + 1];
    find(config.shares[blockIdx.x] + threadIdx.x);
  }

  // After all blocks of the cluster have stored their sums in `shared`.
  __device__ void run(const float* shared) {
    for (int i = config_.shares[blockIdx.x] + threadIdx.x; i < end_;) {
      float sums[kAtOnce][8], second[kAtOnce][8];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const float* source = shared + units_[u].source;
        gather<S, kBoxes>(source, config_.splits, sums[u]);
        if (p_.gated) {
          gather<S, kBoxes>(source + kTiles / 2 * kTileRows, config_.splits, second[u]);
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const Unit& unit = units_[u];
        if (!unit.wanted) continue;
        finish<T>(p_, unit.token, unit.column, sums[u], second[u], unit.residual);
      }
      i += kAtOnce * S::kThreads;
      find(i);
    }
  }

 private:
  using S = Shape<kTiles, kM, kBoxes>;
  static constexpr int kAtOnce = kM < 64 ? 1 : 2;

  struct Unit {
    int token, column;  // of y
    int source;         // in the block's sums
    bool wanted;        // a place of y
    Vec<T, 8> residual;
  };

  __device__ void find(int i) {
    if (i >= end_) return;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int at = u == 0 ? i : min(i + u * S::kThreads, end_ - 1);
      Unit& unit = units_[u];
      unit.token = quotient(at, config_.units);
      const int row = (at - unit.token * static_cast<int>(config_.units.value)) * 8;
      const int tile = row >= config_.tile_rows ? 1 : 0;
      const int place = row - tile * config_.tile_rows;  // in the tile
      unit.column = work_.row + tile * work_.tile_rows + place;
      unit.source = unit.token * S::kPitch + tile * kTileRows + place;
      unit.wanted = place < work_.tile_rows && unit.column < p_.columns &&
                    i + u * S::kThreads < end_;
      unit.residual = {};
      if (unit.wanted) {
        unit.residual = residual_of<T, 8>(p_, unit.token, unit.column);
      }
    }
  }

  const Params& p_;
  const Work& work_;
  const FlatKernelConfig& config_;
  int end_;
  Unit units_[kAtOnce];
};

#endif

}  // namespace fdjax::matmul

// The ring of stages of persistent.cuh, and the thread that fills it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/mbarrier.cuh"
#include "fdjax/pdl.cuh"
#include "fdjax/tma.cuh"
#include "matmul/persistent_tiles.cuh"

namespace fdjax::matmul {

// What TMA must know: boxes of 64 columns, by half of a tile's weight rows, by 64
// tokens of x, of the residual and of y.
struct PersistentMaps {
  CUtensorMap weights, x, residual, y;
};

template <int kStages>
struct PersistentBarriers {
  uint64_t full[kStages];   // a stage's bytes have arrived
  uint64_t empty[kStages];  // all of both blocks have read it
  uint64_t residual;        // a tile of it has arrived where y goes
  uint64_t out_free;        // the tile of y there has been read by its copies
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int kN, bool kGated>
struct PersistentProducer {
  using S = PersistentShape<kN, kGated>;
  using Barriers = PersistentBarriers<S::kStages>;
  static constexpr uint16_t kBoth = (1 << kPair) - 1;

  const PersistentMaps& maps;
  const Params& p;
  const TileOrder& order;
  Barriers& barriers;
  unsigned char* ring;
  unsigned char* out;
  int rank;  // in the cluster

  __device__ void prepare() const {
    for (int s = 0; s < S::kStages; ++s) {
      mbarrier_init(&barriers.full[s], 1);
      mbarrier_init(&barriers.empty[s], kPair * S::kConsumers * 4);  // a lane a warp
    }
    mbarrier_init(&barriers.residual, 1);
    mbarrier_init(&barriers.out_free, S::kConsumers);
    mbarrier_init_fence();
  }

  // The first weight row of a tile's half; of a gated GEMM those of the gate and up.
  __device__ int weight_row(const Tile& tile, int half) const {
    return kGated ? half * p.columns + tile.columns * S::kHalf
                  : tile.columns * kN + half * S::kHalf;
  }

  __device__ void load_weights(const Tile& tile, int stage, int column) const {
    unsigned char* target = ring + stage * S::kStageBytes + S::kXBytes;
    uint64_t* full = &barriers.full[stage];
    if (order.shares_weights) {
      tma_load_to(kBoth, target + rank * S::kHalfBytes, &maps.weights, column,
                  weight_row(tile, rank), full, CachePolicy::kNormal);
      return;
    }
    for (int half = 0; half < 2; ++half) {
      tma_load(target + half * S::kHalfBytes, &maps.weights, column,
               weight_row(tile, half), full, CachePolicy::kNormal);
    }
  }

  __device__ void load_x(const Tile& tile, int stage, int column) const {
    unsigned char* target = ring + stage * S::kStageBytes;
    uint64_t* full = &barriers.full[stage];
    const int row = tile.tokens * S::kTokens;
    if (!order.shares_weights) {
      tma_load_to(kBoth, target + rank * S::kHalfXBytes, &maps.x, column,
                  row + rank * 64, full, CachePolicy::kNormal);
      return;
    }
    for (int half = 0; half < 2; ++half) {
      tma_load(target + half * S::kHalfXBytes, &maps.x, column, row + half * 64, full,
               CachePolicy::kNormal);
    }
  }

  // Into the place of y, once the tile before has left it.
  __device__ void load_residual(const Tile& tile, uint32_t parity) const {
    mbarrier_wait(&barriers.out_free, parity);
    mbarrier_arrive_expect(&barriers.residual, S::kOutBytes);
    for (int box = 0; box < S::kConsumers * S::kBoxes; ++box) {
      tma_load(out + box * S::kBoxBytes, &maps.residual,
               tile.columns * S::kColumns + box % S::kBoxes * 64,
               tile.tokens * S::kTokens + box / S::kBoxes * 64, &barriers.residual,
               CachePolicy::kNormal);
    }
  }

  // All tiles of this block. Weights depend on no kernel before: the first ones are
  // asked for before the wait.
  __device__ void run(int cluster, int num_clusters) const {
    const int depth = (p.k + kTileColumns - 1) / kTileColumns;
    // The consumers free y's place in the second stage of a tile.
    const int residual_at = min(depth - 1, 2 * S::kStages);
    Cursor place;
    uint32_t parity = 0;
    bool waited = false;
    for (int index = cluster; index < order.count(); index += num_clusters) {
      const Tile tile = order.tile(index, rank);
      for (int i = 0; i < depth; ++i) {
        const int column = i * kTileColumns;
        mbarrier_wait(&barriers.empty[place.stage], place.parity ^ 1);
        mbarrier_arrive_expect(&barriers.full[place.stage], S::kStageBytes);
        load_weights(tile, place.stage, column);
        if (!waited) pdl_wait();
        waited = true;
        load_x(tile, place.stage, column);
        place.advance(S::kStages);
        if (!kGated && p.residual != nullptr && i == residual_at) {
          load_residual(tile, parity);
        }
      }
      parity ^= 1;
    }
  }
};

#endif

}  // namespace fdjax::matmul

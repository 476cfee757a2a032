// From a product's sizes and a configuration to launches of D.
#pragma once

#include <algorithm>
#include <type_traits>

#include "fdjax/gpu.h"
#include "fdjax/launch.h"
#include "fdjax/tensor_map.h"
#include "matmul/gemm.cuh"
#include "matmul/launch.h"
#include "matmul/params.h"

namespace fdjax::matmul {

// A range of tiles of weight rows.
struct GemmTiles {
  int first, count;
};

template <typename T, int kN, int kSplit>
cudaError_t launch_gemm_of(const Params& p, const GemmTiles& tiles, int stages,
                           const How& how) {
  using S = GemmShape<kN>;
  constexpr bool kBfloat16 = std::is_same_v<T, GpuFloats::bfloat16>;
  constexpr int kBlocks = kSplit == 1 ? kSharingX : kSplit;  // of a cluster
  constexpr int kTiles = kSplit == 1 ? kSharingX : 1;        // of a cluster
  CUtensorMap weights, x;
  const TileSource weight_tiles{p.weight, p.n, p.k, S::kHalf, kTileColumns};
  const TileSource x_tiles{p.x, p.m, p.k, S::kTokens / kTiles, kTileColumns};
  if (S::bytes(stages) > kMaxSharedBytes ||
      !encode_tensor_map(weight_tiles, kBfloat16, &weights) ||
      !encode_tensor_map(x_tiles, kBfloat16, &x)) {
    return cudaErrorInvalidValue;
  }
  return launch({.stream = how.stream,
                 .grid = dim3(kBlocks, blocks_for(tiles.count, kTiles)),
                 .threads = S::kThreads,
                 .shared_bytes = S::bytes(stages),
                 .cluster = kBlocks,
                 .programmatic = how.programmatic},
                gemm<T, kN, kSplit>, weights, x, p, stages, tiles.first);
}

// Those that are compiled: weight rows of a block, blocks that share K.
#define FDJAX_GEMMS(USE) \
  USE(96, 2) USE(128, 2) USE(192, 2) USE(128, 4) USE(144, 4) USE(256, 1)

template <typename T>
cudaError_t launch_gemm_tiles(const Params& p, const GemmConfig& config,
                              const GemmTiles& tiles, const How& how) {
#define FDJAX_LAUNCH(rows_, split_)                                        \
  if (config.rows == rows_ && config.split == split_) {                    \
    return launch_gemm_of<T, rows_, split_>(p, tiles, config.stages, how); \
  }
  FDJAX_GEMMS(FDJAX_LAUNCH)
#undef FDJAX_LAUNCH
  return cudaErrorInvalidValue;
}

#undef FDJAX_GEMMS

inline int multiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// What is left of whole waves: a fourth of K for each block, as many stages as fit.
inline GemmConfig rest_config() {
  constexpr int kRows = 128;
  constexpr int kFitting = (kMaxSharedBytes - 1024) / GemmShape<kRows>::kStageBytes;
  return {kRows, 4, std::min(kMaxStages, kFitting)};
}

template <typename T>
cudaError_t launch_gemm(const Params& p, const GemmConfig& config, const How& how) {
  if (p.float32 || p.m > kMaxGemmTokens || config.stages < 2 ||
      config.stages > kMaxStages) {
    return cudaErrorInvalidValue;
  }
  const int halves = p.gated ? 2 : 1;
  const int width = config.rows / halves;
  const int tiles = blocks_for(p.columns, width);
  const int wave = multiprocessors() / kSharingX * kSharingX;
  const GemmConfig rest = rest_config();
  const int whole = tiles / wave * wave, rest_width = rest.rows / halves;
  if (config.split != 1 || whole == 0 || whole == tiles ||
      whole * width % rest_width != 0) {
    return launch_gemm_tiles<T>(p, config, {0, tiles}, how);
  }
  const cudaError_t error = launch_gemm_tiles<T>(p, config, {0, whole}, how);
  if (error != cudaSuccess) return error;
  const int first = whole * width / rest_width;
  return launch_gemm_tiles<T>(p, rest,
                              {first, blocks_for(p.columns, rest_width) - first}, how);
}

}  // namespace fdjax::matmul

// From the sizes of a GEMM and a config to a launch of gemm.cuh's kernel.
#pragma once

#include <type_traits>

#include "fdjax/gpu.h"
#include "fdjax/launch.h"
#include "fdjax/tensor_map.h"
#include "matmul/gemm.cuh"
#include "matmul/launch.h"
#include "matmul/params.h"

namespace fdjax::matmul {

template <typename T, int kN, int kSplit>
cudaError_t launch_gemm_of(const Params& p, int stages, const LaunchOptions& options) {
  using S = GemmShape<kN>;
  constexpr bool kBfloat16 = std::is_same_v<T, GpuFloats::bfloat16>;
  constexpr int kBlocks = kSplit == 1 ? kSharingX : kSplit;  // of a cluster
  constexpr int kTiles = kSplit == 1 ? kSharingX : 1;        // of a cluster
  const int width = p.gated ? S::kHalf : kN;                 // columns of y of a tile
  CUtensorMap weights, x;
  const TileSource weight_tiles{p.weight.values, p.n, p.k, S::kHalf, kTileColumns};
  const TileSource x_tiles{p.x, p.m, p.k, S::kTokens / kTiles, kTileColumns};
  if (!encode_tensor_map(weight_tiles, kBfloat16, &weights) ||
      !encode_tensor_map(x_tiles, kBfloat16, &x)) {
    return cudaErrorInvalidValue;
  }
  return launch({.stream = options.stream,
                 .grid = dim3(kBlocks, blocks_for(p.columns, width * kTiles)),
                 .threads = S::kThreads,
                 .shared_bytes = S::bytes(stages),
                 .cluster = kBlocks,
                 .programmatic = options.programmatic},
                gemm<T, kN, kSplit>, weights, x, p, stages);
}

template <typename T>
cudaError_t launch_gemm(const Params& p, const GemmConfig& config,
                        const LaunchOptions& options) {
  if (p.float32 || p.m > kMaxGemmTokens || config.stages < 2 ||
      config.stages > kMaxStages) {
    return cudaErrorInvalidValue;
  }
#define FDJAX_LAUNCH(rows_, split_)                                     \
  if (config.rows == rows_ && config.split == split_) {                 \
    return launch_gemm_of<T, rows_, split_>(p, config.stages, options); \
  }
  FDJAX_GEMMS(FDJAX_LAUNCH)
#undef FDJAX_LAUNCH
  return cudaErrorInvalidValue;
}

}  // namespace fdjax::matmul

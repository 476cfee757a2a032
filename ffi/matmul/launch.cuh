// From the sizes of a GEMM and a config to a launch, for the handler of matmul and
// for handlers that chain kernels.
#pragma once

#include <algorithm>
#include <type_traits>

#include "fdjax/gpu.h"
#include "fdjax/launch.h"
#include "fdjax/tensor_map.h"
#include "matmul/flat.cuh"
#include "matmul/gate.cuh"
#include "matmul/gemv.cuh"
#include "matmul/launch.h"
#include "matmul/params.h"

namespace fdjax::matmul {

template <typename T, int kM>
cudaError_t launch_gemv_of(const Params& p, const LaunchOptions& options) {
  constexpr int kRows = gemv_rows(kM);
  return launch({.stream = options.stream,
                 .grid = dim3(blocks_for(p.columns, p.gated ? kRows / 2 : kRows)),
                 .threads = kGemvThreads,
                 .programmatic = options.programmatic},
                gemv<T, kM, kRows>, p);
}

template <typename T>
cudaError_t launch_gemv(const Params& p, const LaunchOptions& options) {
  if (p.m == 1) return launch_gemv_of<T, 1>(p, options);
  if (p.m == 2) return launch_gemv_of<T, 2>(p, options);
  if (p.m <= kMaxGemvTokens) return launch_gemv_of<T, 4>(p, options);
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_gate(const Params& p, const LaunchOptions& options) {
  return launch({.stream = options.stream,
                 .grid = dim3(blocks_for(p.columns, kGateThreads * kGateColumns), p.m),
                 .threads = kGateThreads,
                 .programmatic = options.programmatic},
                gate<T>, p);
}

template <typename T, int kTiles, int kM, int kBoxes>
cudaError_t launch_flat_of(const Params& p, const FlatConfig& config,
                           const LaunchOptions& options) {
  using S = Shape<kTiles, kM, kBoxes>;
  constexpr bool kBfloat16 = std::is_same_v<T, GpuFloats::bfloat16>;
  CUtensorMap weights, narrow, x;
  TileSource tiles{p.weight.values, p.n, p.k, config.tile_rows, kTileColumns};
  const TileSource x_tiles{p.x, p.m, p.k, kM, kTileColumns};
  const int shared_bytes = S::bytes(config.stages, config.tile_rows);
  if (!encode_tensor_map(tiles, kBfloat16, &weights) ||
      !encode_tensor_map(x_tiles, kBfloat16, &x)) {
    return cudaErrorInvalidValue;
  }
  narrow = weights;
  if (config.narrow > 0) {
    tiles.tile_rows -= kTileRowMultiple;
    if (!encode_tensor_map(tiles, kBfloat16, &narrow)) return cudaErrorInvalidValue;
  }
  const int of_block = p.gated ? kTiles / 2 : kTiles;
  const int behind = config.narrow * of_block * tiles.tile_rows;
  const int wide =
      blocks_for(std::max(p.columns - behind, 0), of_block * config.tile_rows);
  return launch({.stream = options.stream,
                 .grid = dim3(config.splits, wide + config.narrow),
                 .threads = S::kThreads,
                 .shared_bytes = shared_bytes,
                 .cluster = config.splits,
                 .programmatic = options.programmatic},
                flat<T, kTiles, kM, kBoxes>, weights, narrow, x, p,
                kernel_config<S>(p, config, wide));
}

template <typename T, int kTiles, int kBoxes>
cudaError_t launch_flat_m(const Params& p, const FlatConfig& config,
                          const LaunchOptions& options) {
  if (p.m <= kPaddedTokens[0]) {
    return launch_flat_of<T, kTiles, kPaddedTokens[0], kBoxes>(p, config, options);
  }
  if (p.m <= kPaddedTokens[1]) {
    return launch_flat_of<T, kTiles, kPaddedTokens[1], kBoxes>(p, config, options);
  }
  if (p.m <= kPaddedTokens[2]) {
    return launch_flat_of<T, kTiles, kPaddedTokens[2], kBoxes>(p, config, options);
  }
  return launch_flat_of<T, kTiles, kPaddedTokens[3], kBoxes>(p, config, options);
}

inline bool is_valid(const Params& p, const FlatConfig& config) {
  const auto within = [](int value, int low, int high) {
    return low <= value && value <= high;
  };
  return within(p.m, 1, kMaxFlatTokens) &&
         within(config.tiles, p.gated ? 2 : 1, kMaxTiles) &&
         within(config.boxes, 1, kMaxBoxes) && within(config.splits, 1, kMaxSplits) &&
         within(config.stages, 1, kMaxStages) &&
         within(config.tile_rows, kTileRowMultiple, kMaxTileRows) &&
         config.tile_rows % kTileRowMultiple == 0 &&
         (config.narrow == 0 || config.tile_rows > kTileRowMultiple) &&
         within(config.narrow, 0, blocks_for(p.columns, kTileRowMultiple));
}

template <typename T>
cudaError_t launch_flat(const Params& p, const FlatConfig& config,
                        const LaunchOptions& options) {
  if (!is_valid(p, config)) return cudaErrorInvalidValue;
  if (config.tiles == 1) {
    return config.boxes == 1 ? launch_flat_m<T, 1, 1>(p, config, options)
                             : launch_flat_m<T, 1, 2>(p, config, options);
  }
  return config.boxes == 1 ? launch_flat_m<T, 2, 1>(p, config, options)
                           : launch_flat_m<T, 2, 2>(p, config, options);
}

}  // namespace fdjax::matmul

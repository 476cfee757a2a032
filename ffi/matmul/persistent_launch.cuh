// From the sizes of a GEMM and a config to a launch of persistent.cuh's kernel.
#pragma once

#include <algorithm>
#include <type_traits>

#include "fdjax/gpu.h"
#include "fdjax/launch.h"
#include "fdjax/tensor_map.h"
#include "matmul/launch.h"
#include "matmul/params.h"
#include "matmul/persistent.cuh"

namespace fdjax::matmul {

template <typename S>
bool encode_maps(const Params& p, bool bfloat16, PersistentMaps* maps) {
  const auto encode = [&](const void* data, int rows, int columns, int tile_rows,
                          CUtensorMap* map) {
    const TileSource source{data, rows, columns, tile_rows, kTileColumns};
    return data == nullptr || encode_tensor_map(source, bfloat16, map);
  };
  return encode(p.weight.values, p.n, p.k, S::kHalf, &maps->weights) &&
         encode(p.x, p.m, p.k, 64, &maps->x) &&
         encode(p.residual, p.m, p.columns, 64, &maps->residual) &&
         encode(p.y, p.m, p.columns, 64, &maps->y);
}

inline int clusters_of_device() {
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  return sms / kPair;
}

template <typename T, int kN, Gate kGate>
cudaError_t launch_persistent_of(const Params& p, const PersistentConfig& config,
                                 const LaunchOptions& options) {
  using S = PersistentShape<kN, kGate != Gate::kNone>;
  PersistentMaps maps{};
  if (!encode_maps<S>(p, std::is_same_v<T, GpuFloats::bfloat16>, &maps)) {
    return cudaErrorInvalidValue;
  }
  const int tall = config.shares_weights ? kPair : 1, wide = kPair / tall;
  const TileOrder order{.rows = blocks_for(p.m, S::kTokens * tall),
                        .columns = blocks_for(p.columns, S::kColumns * wide),
                        .band = config.band,
                        .shares_weights = config.shares_weights};
  const int clusters = std::min(order.count(), clusters_of_device());
  return launch({.stream = options.stream,
                 .grid = dim3(clusters * kPair),
                 .threads = S::kThreads,
                 .shared_bytes = S::kBytes,
                 .cluster = kPair,
                 .programmatic = options.programmatic},
                persistent<T, kN, kGate>, maps, p, order);
}

template <typename T, int kN>
cudaError_t launch_gated(const Params& p, const PersistentConfig& config,
                         const LaunchOptions& options) {
  if (p.bias == nullptr && p.activation == Activation::kSilu)
    return launch_persistent_of<T, kN, Gate::kSilu>(p, config, options);
  if (p.bias == nullptr && p.activation == Activation::kGeluTanh)
    return launch_persistent_of<T, kN, Gate::kGeluTanh>(p, config, options);
  if constexpr (kN <= kMaxOtherGateRows)
    return launch_persistent_of<T, kN, Gate::kOther>(p, config, options);
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_persistent(const Params& p, const PersistentConfig& config,
                              const LaunchOptions& options) {
  if (p.float32 || config.band < 1) return cudaErrorInvalidValue;
#define FDJAX_LAUNCH(rows_)                                                           \
  if (config.rows == rows_) {                                                         \
    return p.gated ? launch_gated<T, rows_>(p, config, options)                       \
                   : launch_persistent_of<T, rows_, Gate::kNone>(p, config, options); \
  }
  FDJAX_PERSISTENT_ROWS(FDJAX_LAUNCH)
#undef FDJAX_LAUNCH
  return cudaErrorInvalidValue;
}

}  // namespace fdjax::matmul

// Which kernel computes a GEMM, with its launch config: how Python says it, and the
// launch. fdjax/kernels/matmul/params.py has the same five, and writes what is read
// here, for the handler of matmul and in a program of layers.
#pragma once

#include <cstdint>
#include <variant>

#include "fdjax/numbers.h"
#include "matmul/launch.h"
#include "matmul/library.h"

namespace fdjax::matmul {

struct GemvConfig {};

struct LibraryConfig {
  int candidate;  // of cuBLASLt's
};

// Python counts them in this order.
using MatmulConfig =
    std::variant<GemvConfig, FlatConfig, GemmConfig, LibraryConfig, PersistentConfig>;

inline MatmulConfig read_config(Numbers& numbers) {
  switch (numbers.number("kernel", 0, std::variant_size_v<MatmulConfig> - 1)) {
    case 1:
      return FlatConfig{
          .tiles = numbers.number("tiles", 1, kMaxTiles),
          .boxes = numbers.number("boxes", 1, kMaxBoxes),
          .tile_rows = numbers.number("tile_rows", kTileRowMultiple, kMaxTileRows),
          .splits = numbers.number("splits", 1, kMaxSplits),
          .stages = numbers.number("stages", 1, kMaxStages),
          .narrow = numbers.number("narrow", 0)};
    case 2:
      return GemmConfig{.rows = numbers.number("rows", 1),
                        .split = numbers.number("split", 1),
                        .stages = numbers.number("stages", 2, kMaxStages)};
    case 3:
      return LibraryConfig{.candidate = numbers.number("candidate", 0)};
    case 4:
      return PersistentConfig{
          .rows = numbers.number("rows", 1),
          .band = numbers.number("band", 1),
          .shares_weights = numbers.number("shares_weights", 0, 1) == 1};
    default:
      return GemvConfig{};
  }
}

// The same call as the kernels for one format of weights are given it.
template <typename Weight>
ParamsOf<Weight> with_weight(const MatmulParams& p, const Weight& weight) {
  return {.x = p.x,
          .weight = weight,
          .bias = p.bias,
          .residual = p.residual,
          .y = p.y,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .columns = p.columns,
          .gated = p.gated,
          .float32 = p.float32,
          .activation = p.activation};
}

template <typename T>
class MatmulLauncher {
 public:
  MatmulLauncher(const MatmulParams& p, const LaunchOptions& options)
      : p_(p), options_(options) {}

  template <typename Weight>
  cudaError_t operator()(const Weight& weight, const GemvConfig&) const {
    return launch_gemv<T>(with_weight(p_, weight), options_);
  }
  template <typename Weight>
  cudaError_t operator()(const Weight& weight, const FlatConfig& config) const {
    return launch_flat<T>(with_weight(p_, weight), config, options_);
  }
  template <typename Weight>
  cudaError_t operator()(const Weight& weight, const GemmConfig& config) const {
    return launch_gemm<T>(with_weight(p_, weight), config, options_);
  }
  template <typename Weight>
  cudaError_t operator()(const Weight& weight, const LibraryConfig& config) const {
    return launch_library<T>(with_weight(p_, weight), config.candidate,
                             options_.stream);
  }
  template <typename Weight>
  cudaError_t operator()(const Weight& weight, const PersistentConfig& config) const {
    return launch_persistent<T>(with_weight(p_, weight), config, options_);
  }

 private:
  const MatmulParams& p_;
  const LaunchOptions& options_;
};

// The one entry to all GEMMs: by the weight's format and the launch config.
template <typename T>
cudaError_t launch_matmul(const MatmulParams& p, const MatmulConfig& config,
                          const LaunchOptions& options) {
  return std::visit(MatmulLauncher<T>(p, options), p.weight, config);
}

}  // namespace fdjax::matmul

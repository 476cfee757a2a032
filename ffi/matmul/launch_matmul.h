// Which kernel computes a GEMM, with its launch config: how Python says it, and the
// launch. fdjax/kernels/matmul/params.py has the same four, and writes what is read
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
using MatmulConfig = std::variant<GemvConfig, FlatConfig, GemmConfig, LibraryConfig>;

inline MatmulConfig read_config(Numbers& numbers) {
  switch (numbers.number("kernel", 0, std::variant_size_v<MatmulConfig> - 1)) {
    case 1:
      return FlatConfig{
          .tiles = numbers.number("tiles", 1, kMaxTiles),
          .boxes = numbers.number("boxes", 1, kMaxBoxes),
          .tile_rows = numbers.number("tile_rows", kTileRowMultiple, kMaxTileRows),
          .splits = numbers.number("splits", 1, kMaxSplits),
          .stages = numbers.number("stages", 1, kMaxStages)};
    case 2:
      return GemmConfig{.rows = numbers.number("rows", 1),
                        .split = numbers.number("split", 1),
                        .stages = numbers.number("stages", 2, kMaxStages)};
    case 3:
      return LibraryConfig{.candidate = numbers.number("candidate", 0)};
    default:
      return GemvConfig{};
  }
}

template <typename T>
class MatmulLauncher {
 public:
  MatmulLauncher(const Params& p, const How& how) : p_(p), how_(how) {}

  cudaError_t operator()(const GemvConfig&) const { return launch_gemv<T>(p_, how_); }
  cudaError_t operator()(const FlatConfig& config) const {
    return launch_flat<T>(p_, config, how_);
  }
  cudaError_t operator()(const GemmConfig& config) const {
    return launch_gemm<T>(p_, config, how_);
  }
  cudaError_t operator()(const LibraryConfig& config) const {
    return launch_library<T>(p_, config.candidate, how_.stream);
  }

 private:
  const Params& p_;
  const How& how_;
};

template <typename T>
cudaError_t launch_matmul(const Params& p, const MatmulConfig& config, const How& how) {
  return std::visit(MatmulLauncher<T>(p, how), config);
}

}  // namespace fdjax::matmul

// What the kernels of matmul are given. Sizes are in elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fdjax::matmul {

// In the order of fdjax/kernels/activations.py.
enum class Activation : int { kSilu, kGelu, kGeluTanh, kRelu };

// y = x * weight^T + bias + residual; or, gated, where half of the weight's rows make a
// gate and the others `up`, a bias added to both: y = activation(gate) * up.
struct Params {
  const void* x;         // [m, k]
  const void* weight;    // [n, k]; gated: gate rows, then up rows
  const void* bias;      // [n] or nullptr
  const void* residual;  // [m, columns] or nullptr; never with a gate
  void* y;               // [m, columns]
  int m;
  int n;
  int k;
  int columns;  // of y: n, or n / 2 if gated
  bool gated;
  bool float32;  // y is float32 instead of x's type
  Activation activation;
};

// The launch config of the flat GEMM (flat.cuh). A block computes `tiles * tile_rows`
// weight rows (gated: half of them are up rows), in steps of 64 * boxes columns of K.
struct FlatConfig {
  int tiles;      // of weight rows in a block: 1 or 2; gated: 2; or kByGemv, ... below
  int boxes;      // of 64 columns of K in a stage: 1 or 2
  int tile_rows;  // weight rows of a tile: a multiple of 8 up to 64
  int splits;     // of K, over the blocks of a cluster (split-K)
  int stages;     // of the ring in shared memory: steps that are loaded ahead
};

// In the place of `tiles`: another kernel than flat.cuh's multiplies. For the library,
// `boxes` says which of its candidates (library.h); for gemm.cuh, `tile_rows`, `splits`
// and `stages` are a GemmConfig.
inline constexpr int kByGemm = -2;
inline constexpr int kByLibrary = -1;
inline constexpr int kByGemv = 0;

inline constexpr int kMaxGemmTokens = 128;

// The launch config of gemm.cuh; gemm_launch.cuh lists those that are compiled.
struct GemmConfig {
  int rows;    // weight rows of a block; gated: half of them are up rows
  int split;   // of K, over the blocks of a cluster (split-K)
  int stages;  // of the ring in shared memory
};

// The GemmConfig in the fields of a FlatConfig, whose `tiles` is kByGemm.
inline GemmConfig gemm_from(const FlatConfig& numbers) {
  return {numbers.tile_rows, numbers.splits, numbers.stages};
}

struct How {
  cudaStream_t stream;
  // Programmatic dependent launch (pdl.cuh): may start before the kernel before ends.
  bool programmatic;
};

}  // namespace fdjax::matmul

// What the kernels of matmul are given. Sizes are in elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fdjax::matmul {

// In the order of fdjax/kernels/activations.py.
enum class Activation : int { kSilu, kGelu, kGeluTanh, kRelu };

// y = x * weight^T + bias + residual, or, gated, with the two halves of the product:
// y = activation(gate) * up.
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

// How B cuts a product up. A block computes `tiles * tile_rows` weight rows (of a gated
// product, half of them are up rows), 64 * boxes columns at a time.
struct FlatConfig {
  int tiles;      // 1 or 2; gated: 2; or kByGemv, kByLibrary or kByGemm
  int boxes;      // 1 or 2
  int tile_rows;  // a multiple of 8 up to 64
  int splits;     // of K, over the blocks of a cluster
  int stages;     // of the ring
};

// What else may multiply, as a number of tiles. For the library, `boxes` is the
// candidate that library.h counts; for D, `tile_rows`, `splits` and `stages` are
// GemmConfig's.
inline constexpr int kByGemm = -2;
inline constexpr int kByLibrary = -1;
inline constexpr int kByGemv = 0;

inline constexpr int kMaxGemmTokens = 128;

// How D cuts a product up; which of them there are is in gemm_launch.cuh.
struct GemmConfig {
  int rows;    // weight rows of a block; of a gated product, half of them are up rows
  int split;   // of K, over the blocks of a cluster
  int stages;  // of the ring
};

inline GemmConfig gemm_from(const FlatConfig& numbers) {
  return {numbers.tile_rows, numbers.splits, numbers.stages};
}

struct How {
  cudaStream_t stream;
  bool programmatic;  // may start before the kernel before has ended (pdl.cuh)
};

}  // namespace fdjax::matmul

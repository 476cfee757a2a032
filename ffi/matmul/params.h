// The arguments of matmul's GPU kernels, and their launch configs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "fdjax/weight.h"
#include "matmul/limits.h"

namespace fdjax::matmul {

// In the order of fdjax/kernels/activations.py.
enum class Activation : int { kSilu, kGelu, kGeluTanh, kRelu };
inline constexpr int kLastActivation = static_cast<int>(Activation::kRelu);

// y = x * weight^T + bias + residual; or, if gated, y = activation(gate) * up, where
// gate and up are the two halves of the columns of x * weight^T + bias. All matrices
// are row-major without padding, in bfloat16 or float16 (a template parameter of the
// kernels); sums are float32. Sizes are in elements.
template <typename Weight>
struct ParamsOf {
  const void* x;         // [m, k]
  Weight weight;         // [n, k]; gated: gate rows, then up rows
  const void* bias;      // [n] or nullptr
  const void* residual;  // [m, columns] or nullptr; never with a gate
  void* y;               // [m, columns]
  int m;                 // tokens: rows of x and y
  int n;                 // rows of the weight
  int k;                 // what is summed over: columns of x and of the weight
  int columns;           // of y: n, or n / 2 if gated
  bool gated;
  bool float32;           // y is float32 instead of x's type
  Activation activation;  // of the gate; without one not read
};

using MatmulParams = ParamsOf<WeightView>;  // as handlers ask for it
using Params = ParamsOf<DenseView>;         // as kernels for dense weights are given it

// The launch config of the flat GEMM (flat.cuh). A block multiplies `tiles * tile_rows`
// rows of the weight by all tokens. It walks along K in steps of 64 * boxes columns;
// a ring of stages in shared memory holds x and weights of the next steps.
struct FlatConfig {
  int tiles;      // 1 or 2; gated: 2, one of gate rows and one of up rows
  int boxes;      // TMA boxes of a tile in a stage, each 64 columns of K wide: 1 or 2
  int tile_rows;  // weight rows of a tile: a multiple of 8 up to 64
  int splits;     // blocks of a cluster, each with a part of K (split-K), up to 8
  int stages;     // of the ring: 1 to 16, as far as shared memory has room
  int narrow;     // so many blocks, the last, have tiles 8 rows shorter: even shares
};

// The launch config of the GEMM for up to 128 tokens (gemm.cuh); limits.h lists the
// pairs of `rows` and `split` that are compiled.
struct GemmConfig {
  int rows;    // weight rows of a block; gated: half of them are up rows
  int split;   // blocks of a cluster, each with a part of K (split-K); 1: all of K
  int stages;  // of the ring in shared memory, 64 columns of K each
};

// The launch config of the persistent GEMM (persistent.cuh); limits.h lists the `rows`
// that are compiled, and how many a gate takes.
struct PersistentConfig {
  int rows;             // weight rows of a tile; gated: half of them are up rows
  int band;             // token tiles of clusters before the next weight columns
  bool shares_weights;  // both blocks of a pair read one weight tile; else one x tile
};

// On which stream a kernel is launched, and whether it may start early.
struct LaunchOptions {
  cudaStream_t stream;
  // Programmatic dependent launch (pdl.cuh): the kernel may start before the one before
  // it in the stream has ended.
  bool programmatic = false;
};

}  // namespace fdjax::matmul

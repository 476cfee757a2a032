// What the dense part of a layer is given (dense.cuh). Sizes are in elements.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "matmul/params.h"

namespace fdjax::decoder_stack {

inline constexpr int kSegments = 4;    // out, up, down, and the next layer's qkv
inline constexpr int kWarpgroups = 4;  // of the consumers; a tile has as many as fit
inline constexpr int kBoxColumns = 64;
// Of a slot: a row's 512 bytes in a row. Reading 128 bytes of each row at a time, and
// of more rows instead, reaches 4.0 TB/s on an H200; this, 4.66.
inline constexpr int kBoxes = 4;
inline constexpr int kTokens = 8;  // of a launch at most: the columns of a wgmma
inline constexpr int kMaxDenseStages = 12;
inline constexpr int kNoCounter = -1;

// One product and what follows it. A block computes `rows` neighbouring columns of y.
struct Segment {
  int tiles, tile_rows;  // of weight rows in a block; gated: half of the tiles are up
  int depth;             // slots of a tile, along K
  int n, k;              // of the weight
  int columns;           // of y: n, or n / 2 if gated
  bool gated;
  const void* bias;      // [n] or nullptr
  const void* residual;  // [m, columns] or nullptr
  void* y;               // [m, columns]
  // For the norm that follows, y * (scale + scale_offset) and each block's sums of
  // squares of y; its 1 / rms is a factor of the next product's results.
  const void* scale;            // [columns] or nullptr: no norm follows
  void* scaled;                 // [m, columns]
  float* squares;               // [blocks, kTokens]
  const float* squares_before;  // what the norm before left, or nullptr: no factor
  int wait_for, signal;         // counters; kNoCounter: none

  __host__ __device__ int rows() const {
    return (gated ? tiles / 2 : tiles) * tile_rows;
  }
  __host__ __device__ int blocks() const { return (columns + rows() - 1) / rows(); }
  __host__ __device__ int slots() const { return tiles * depth; }
  __host__ __device__ int owners() const { return kWarpgroups / tiles; }  // of a tile
  __host__ __device__ int weight_bytes() const {                          // of a slot
    return kBoxes * tile_rows * kBoxColumns * 2;
  }
};

__host__ __device__ inline constexpr int x_bytes() {  // of a slot
  return kBoxes * kTokens * kBoxColumns * 2;
}

struct DenseParams {
  Segment segments[kSegments];
  int count;   // of segments
  int m;       // tokens
  int stages;  // slots of the ring
  int slot_bytes;
  int norm_size;
  float epsilon, scale_offset;
  matmul::Activation activation;
  int32_t* counters;  // of this launch; zero before it
};

struct DenseMaps {
  CUtensorMap weights[kSegments];
  CUtensorMap x[kSegments];
};

// `x` is what the segments multiply, each [m, k]; `weights` likewise, [n, k]. Both are
// bfloat16. The launch may start before its predecessor ends; that must write no
// weight.
cudaError_t launch_dense(cudaStream_t stream, DenseParams p, const void* const* x,
                         const void* const* weights);

}  // namespace fdjax::decoder_stack

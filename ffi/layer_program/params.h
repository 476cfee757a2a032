// What the kernels of layer_program's own are given. Sizes are in elements.
#pragma once

#include <cstdint>

#include "layer_program/limits.h"
#include "matmul/params.h"

namespace fdjax::layer_program {

// out = norm(head) of query and key heads; values are copied.
struct HeadNormParams {
  const void* x;          // [rows, q_heads + 2 * kv_heads, head_dim]
  const void* scale;      // [head_dim], of query heads
  const void* bias;       // [head_dim] or nullptr: an RMS norm
  const void* key_scale;  // [head_dim], of key heads
  const void* key_bias;   // as bias
  void* out;              // as x; may be x
  int rows;
  int q_heads;
  int kv_heads;
  int head_dim;  // a multiple of 8 up to 256
  float epsilon;
  float scale_offset;
};

// y = activation(y).
struct ActivateParams {
  void* y;
  int64_t size;  // a multiple of 8
  matmul::Activation activation;
};

// sum = x + delta; `sum` may be either.
struct SumParams {
  const void* x;
  const void* delta;
  void* sum;
  int64_t size;  // a multiple of 8
};

// Rows by their places: out[i] = x[places[i]], or out[places[i]] = x[i].
struct RowsParams {
  const void* x;          // [x_rows, columns]
  void* out;              // [out_rows, columns]
  const int32_t* places;  // [count]
  int count;
  int x_rows, out_rows;
  int columns;  // a multiple of 8
};

}  // namespace fdjax::layer_program

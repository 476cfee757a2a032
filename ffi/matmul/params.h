// What the kernels of matmul are given. Sizes are in elements.
#pragma once

#include <cstdint>

namespace fdjax::matmul {

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

}  // namespace fdjax::matmul

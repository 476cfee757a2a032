// What happens to a sum before it is written: bias, gate, residual, rounding.
#pragma once

#include <cstdint>

#include "fdjax/vector.cuh"
#include "matmul/params.h"

namespace fdjax::matmul {

__device__ inline float gelu(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

// Not inlined: eight copies in every kernel would be a third of their compilation.
__device__ __noinline__ inline float activate_slowly(Activation activation, float x) {
  switch (activation) {
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    default:
      return fmaxf(x, 0.0f);
  }
}

__device__ inline float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// (1 + tanh(z)) / 2 is 1 / (1 + exp(-2 z)).
__device__ inline float gelu_tanh(float x) {
  return __fdividef(x, 1.0f + __expf(-1.59576912f * (x + 0.044715f * x * x * x)));
}

__device__ inline float activate(Activation activation, float x) {
  return activation == Activation::kSilu ? silu(x) : activate_slowly(activation, x);
}

template <typename T, int kVec>
__device__ void add(const void* source, int64_t offset, float (&sums)[kVec]) {
  if (source == nullptr) return;
  const auto v =
      *reinterpret_cast<const Vec<T, kVec>*>(static_cast<const T*>(source) + offset);
#pragma unroll
  for (int i = 0; i < kVec; ++i) sums[i] += to_float(v.values[i]);
}

// What is to be added to columns [column, column + kVec) of row `row`, if anything. A
// kernel before makes it, so it is there long before the sums are: asked for early, its
// latency is not the last thing that a GEMM waits for.
template <typename T, int kVec>
__device__ Vec<T, kVec> residual_of(const Params& p, int row, int column) {
  if (p.residual == nullptr) return {};
  const int64_t at = static_cast<int64_t>(row) * p.columns + column;
  return *reinterpret_cast<const Vec<T, kVec>*>(static_cast<const T*>(p.residual) + at);
}

// Finishes and writes columns [column, column + kVec) of row `row`. `second` holds the
// sums of the up rows of a gated GEMM, and nothing otherwise.
template <typename T, int kVec>
__device__ void finish(const Params& p, int row, int column, float (&sums)[kVec],
                       float (&second)[kVec], const Vec<T, kVec>& residual = {}) {
  const int64_t at = static_cast<int64_t>(row) * p.columns + column;
  add<T>(p.bias, column, sums);
  if (p.gated) {
    add<T>(p.bias, p.columns + column, second);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      sums[i] = activate(p.activation, sums[i]) * second[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) sums[i] += to_float(residual.values[i]);
  if (p.float32) {
    constexpr int kPart = kVec < 4 ? kVec : 4;  // 16 bytes
#pragma unroll
    for (int i = 0; i < kVec; i += kPart) {
      Vec<float, kPart> out;
#pragma unroll
      for (int j = 0; j < kPart; ++j) out.values[j] = sums[i + j];
      *reinterpret_cast<Vec<float, kPart>*>(static_cast<float*>(p.y) + at + i) = out;
    }
  } else {
    Vec<T, kVec> out;
#pragma unroll
    for (int i = 0; i < kVec; ++i) out.values[i] = from_float<T>(sums[i]);
    *reinterpret_cast<Vec<T, kVec>*>(static_cast<T*>(p.y) + at) = out;
  }
}

}  // namespace fdjax::matmul

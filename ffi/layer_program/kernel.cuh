// What a layer program does between GEMMs and attention, where add_norm does not.
//
// Each kernel is as long as its bytes take: a thread moves 16 of them at a time, and
// waits for its predecessor at once.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
#include "fdjax/pdl.cuh"
#include "fdjax/vector.cuh"
#include "layer_program/params.h"
#include "matmul/epilogue.cuh"

namespace fdjax::layer_program {

inline constexpr int kThreads = 256;
inline constexpr int kVec = kUnit;            // elements of an access
inline constexpr int kHeads = kThreads / 32;  // of a block of head_norm: one a warp

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lane);
  }
  return value;
}

// A lane's share of a head as floats; zeros where it has none.
template <typename T>
struct HeadShare {
  float values[kVec] = {};

  __device__ void load(const void* head, int lane, bool has) {
    if (!has) return;
    const auto from = static_cast<const Vec<T, kVec>*>(head)[lane];
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] = to_float(from.values[i]);
  }

  __device__ void store(void* head, int lane, bool has) const {
    if (!has) return;
    Vec<T, kVec> to;
#pragma unroll
    for (int i = 0; i < kVec; ++i) to.values[i] = from_float<T>(values[i]);
    static_cast<Vec<T, kVec>*>(head)[lane] = to;
  }

  // The sum of (value - mean)^power over the head.
  __device__ float total(float mean, bool squared, bool has) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float centred = values[i] - mean;
      sum += squared ? centred * centred : values[i];
    }
    return warp_sum(has ? sum : 0.0f);
  }
};

// A warp for each head. Grid: heads of all rows / kHeads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    head_norm(FDJAX_GRID_CONSTANT const HeadNormParams p) {
  pdl_release();
  pdl_wait();
  const int heads = p.q_heads + 2 * p.kv_heads;
  const int64_t index = int64_t{blockIdx.x} * kHeads + threadIdx.x / 32;
  if (index >= int64_t{p.rows} * heads) return;
  const int head = index % heads, lane = threadIdx.x % 32;
  const bool has = lane < p.head_dim / kVec;
  HeadShare<T> x;
  x.load(static_cast<const T*>(p.x) + index * p.head_dim, lane, has);
  const bool is_value = head >= p.q_heads + p.kv_heads;
  if (is_value && p.out == p.x) return;
  if (!is_value) {
    const bool is_key = head >= p.q_heads;
    const void* biases = is_key ? p.key_bias : p.bias;
    HeadShare<T> scale, bias;
    scale.load(is_key ? p.key_scale : p.scale, lane, has);
    bias.load(biases, lane, has && biases != nullptr);
    const float part = 1.0f / p.head_dim;
    const float mean = biases == nullptr ? 0.0f : x.total(0.0f, false, has) * part;
    const float squares = x.total(mean, true, has) * part;
    const float inverse = rsqrtf(squares + p.epsilon);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float factor = scale.values[i] + p.scale_offset;
      x.values[i] = (x.values[i] - mean) * inverse * factor + bias.values[i];
    }
  }
  x.store(static_cast<T*>(p.out) + index * p.head_dim, lane, has);
}

// The pack of this thread, or -1 past the last one.
__device__ inline int64_t pack_of(int64_t size) {
  const int64_t pack = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  return pack < size / kVec ? pack : -1;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    activate(FDJAX_GRID_CONSTANT const ActivateParams p) {
  pdl_release();
  pdl_wait();
  const int64_t pack = pack_of(p.size);
  if (pack < 0) return;
  Vec<T, kVec> y = static_cast<Vec<T, kVec>*>(p.y)[pack];
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    y.values[i] = from_float<T>(matmul::activate(p.activation, to_float(y.values[i])));
  }
  static_cast<Vec<T, kVec>*>(p.y)[pack] = y;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sum(FDJAX_GRID_CONSTANT const SumParams p) {
  pdl_release();
  pdl_wait();
  const int64_t pack = pack_of(p.size);
  if (pack < 0) return;
  Vec<T, kVec> x = static_cast<const Vec<T, kVec>*>(p.x)[pack];
  const Vec<T, kVec> delta = static_cast<const Vec<T, kVec>*>(p.delta)[pack];
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    x.values[i] = from_float<T>(to_float(x.values[i]) + to_float(delta.values[i]));
  }
  static_cast<Vec<T, kVec>*>(p.sum)[pack] = x;
}

// Grid: rows, columns.
template <typename T, bool kScatters>
__global__ void __launch_bounds__(kThreads)
    move_rows(FDJAX_GRID_CONSTANT const RowsParams p) {
  pdl_release();
  pdl_wait();
  const int pack = blockIdx.y * kThreads + threadIdx.x;
  const int packs = p.columns / kVec;
  if (pack >= packs) return;
  int place = p.places[blockIdx.x];
  if (kScatters) {
    if (place < 0 || place >= p.out_rows) return;
  } else {
    place = min(max(place, 0), p.x_rows - 1);
  }
  const int64_t from = kScatters ? blockIdx.x : place;
  const int64_t to = kScatters ? place : blockIdx.x;
  static_cast<Vec<T, kVec>*>(p.out)[to * packs + pack] =
      static_cast<const Vec<T, kVec>*>(p.x)[from * packs + pack];
}

}  // namespace fdjax::layer_program

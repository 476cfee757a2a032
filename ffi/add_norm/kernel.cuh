// add_norm on a GPU: one block a row, the row read once and kept in registers.
//
//   sum = x + delta, or x + delta * rsqrt(mean(delta^2) + epsilon) * (delta_scale + ..)
//   out = sum * rsqrt(mean(sum^2) + epsilon) * (scale + scale_offset)         RMS norm
//   out = (sum - mean) * rsqrt(variance + epsilon) * (scale + ..) + bias     layer norm
//
// A decode step normalises a few rows of 8 KB: the time is latency, not bytes. So every
// load of a thread is issued before the first is used, and scale and bias, which no
// earlier kernel writes, are loaded before waiting for the kernel that makes x (but not
// in rows of more than 16 KiB).
#pragma once

#include "add_norm/launch.h"
#include "add_norm/params.h"
#include "fdjax/gpu.h"
#include "fdjax/pdl.cuh"
#include "fdjax/vector.cuh"

namespace fdjax::add_norm {

inline constexpr int kWarps = kThreads / 32;

// The mean of a row of 1 / `part` elements, of whose sum `value` is this thread's
// share; every thread gets it. `partial` is this call's own.
__device__ inline float row_mean(float value, float part, float (&partial)[kWarps]) {
  for (int lane = 16; lane > 0; lane /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lane);
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp];
  return sum * part;
}

// What a thread holds of an array of `packs` packs: every kThreads-th.
template <typename T, int kPacks>
struct Share {
  using P = Vec<T, kVec<T>>;
  P values[kPacks];

  // f(i) for each of the thread's packs; `at` is its place in the array.
  template <typename F>
  __device__ static void each(int packs, F f) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int at = threadIdx.x + i * kThreads;
      if (at < packs) f(i, at);
    }
  }

  __device__ void load(const void* source, int64_t row, int packs) {
    const P* from = static_cast<const P*>(source) + row * packs;
    each(packs, [&](int i, int at) { values[i] = from[at]; });
  }

  __device__ void store(void* target, int64_t row, int packs) const {
    P* to = static_cast<P*>(target) + row * packs;
    each(packs, [&](int i, int at) { to[at] = values[i]; });
  }

  // value = f(i, j, value) for each element of the thread.
  template <typename F>
  __device__ void map(int packs, F f) {
    each(packs, [&](int i, int) {
#pragma unroll
      for (int j = 0; j < kVec<T>; ++j) {
        values[i].values[j] = from_float<T>(f(i, j, to_float(values[i].values[j])));
      }
    });
  }

  // The sum of f(element).
  template <typename F>
  __device__ float total(int packs, F f) const {
    float sum = 0.0f;
    each(packs, [&](int i, int) {
#pragma unroll
      for (int j = 0; j < kVec<T>; ++j) sum += f(to_float(values[i].values[j]));
    });
    return sum;
  }
};

template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads) kernel(const Params p) {
  __shared__ float partial[3][kWarps];
  const int packs = p.size / kVec<T>;
  const float part = 1.0f / p.size;
  Share<T, kPacks> scale, bias, x;
  const auto load_parameters = [&] {
    scale.load(p.scale, 0, packs);
    if (p.bias != nullptr) bias.load(p.bias, 0, packs);
  };
  // The longest rows leave no registers for them beside what delta's norm needs.
  constexpr bool kAhead = kPacks < 4;
  if constexpr (kAhead) load_parameters();
  pdl_release();
  pdl_wait();
  x.load(p.x, blockIdx.x, packs);
  if (p.delta != nullptr) {
    Share<T, kPacks> delta;
    delta.load(p.delta, blockIdx.x, packs);
    if (p.delta_scale != nullptr) {
      Share<T, kPacks> delta_scale;
      delta_scale.load(p.delta_scale, 0, packs);
      const float squares = delta.total(packs, [](float v) { return v * v; });
      const float inverse = rsqrtf(row_mean(squares, part, partial[2]) + p.epsilon);
      delta.map(packs, [&](int i, int j, float v) {
        return v * inverse *
               (to_float(delta_scale.values[i].values[j]) + p.scale_offset);
      });
    }
    x.map(packs, [&](int i, int j, float v) {
      return v + to_float(delta.values[i].values[j]);
    });
    x.store(p.sum, blockIdx.x, packs);
  }

  if constexpr (!kAhead) load_parameters();
  float mean = 0.0f;
  if (p.bias != nullptr) {
    const float total = x.total(packs, [](float v) { return v; });
    mean = row_mean(total, part, partial[0]);
  }
  const float squares =
      x.total(packs, [&](float v) { return (v - mean) * (v - mean); });
  const float inverse = rsqrtf(row_mean(squares, part, partial[1]) + p.epsilon);
  x.map(packs, [&](int i, int j, float v) {
    const float factor = to_float(scale.values[i].values[j]) + p.scale_offset;
    const float y = (v - mean) * inverse * factor;
    return p.bias == nullptr ? y : y + to_float(bias.values[i].values[j]);
  });
  x.store(p.out, blockIdx.x, packs);
}

}  // namespace fdjax::add_norm

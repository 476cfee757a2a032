// The end of a tile of persistent.cuh: from a warpgroup's accumulators to rows of y.
#pragma once

#include <cstdint>

#include "fdjax/mma.cuh"
#include "fdjax/tma.cuh"
#include "fdjax/vector.cuh"
#include "matmul/epilogue.cuh"
#include "matmul/gemm_sums.cuh"
#include "matmul/persistent_ring.cuh"

namespace fdjax::matmul {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The threads of a warpgroup meet.
__device__ inline void warpgroup_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Two neighbouring columns of the bias; nothing beyond its end.
template <typename T>
__device__ float2 bias_of(const void* bias, int column, int end) {
  if (bias == nullptr || column >= end) return {};
  const auto two =
      *reinterpret_cast<const Vec<T, 2>*>(static_cast<const T*>(bias) + column);
  return {to_float(two.values[0]), to_float(two.values[1])};
}

template <typename T>
__device__ uint32_t packed(float low, float high) {
  Vec<T, 2> two;
  two.values[0] = from_float<T>(low), two.values[1] = from_float<T>(high);
  return *reinterpret_cast<const uint32_t*>(&two);
}

template <typename T>
__device__ float2 unpacked(uint32_t bits) {
  const auto two = *reinterpret_cast<const Vec<T, 2>*>(&bits);
  return {to_float(two.values[0]), to_float(two.values[1])};
}

// A call would send all sums to memory, so nothing is called.
__device__ inline float activate_inline(Activation activation, float x) {
  if (activation == Activation::kSilu) return silu(x);
  if (activation == Activation::kGeluTanh) return gelu_tanh(x);
  return activation == Activation::kGelu ? gelu(x) : fmaxf(x, 0.0f);
}

// What a tile becomes in the place of y: `out` is this warpgroup's. A thread has the
// sums of two rows, 8 apart, and of two columns of every 8.
template <typename T, int kN, Gate kGate>
struct PersistentEnd {
  static constexpr bool kGated = kGate != Gate::kNone;
  using S = PersistentShape<kN, kGated>;

  const Params& p;
  uint32_t out;
  int column;  // of y, the tile's first

  // Two neighbouring columns, `i` being the place of the first among the sums.
  __device__ uint32_t pair(const float (&sums)[kN / 2], int i, int lane,
                           uint32_t residual) const {
    const int at = column + i / 4 * 8 + lane % 4 * 2;
    if constexpr (kGate == Gate::kSilu || kGate == Gate::kGeluTanh) {
      constexpr bool kSilu = kGate == Gate::kSilu;
      const float low = kSilu ? silu(sums[i]) : gelu_tanh(sums[i]);
      const float high = kSilu ? silu(sums[i + 1]) : gelu_tanh(sums[i + 1]);
      return packed<T>(low * sums[i + kN / 4], high * sums[i + 1 + kN / 4]);
    }
    const float2 bias = bias_of<T>(p.bias, at, p.columns);
    const float low = sums[i] + bias.x, high = sums[i + 1] + bias.y;
    if constexpr (kGated) {
      const void* const second = at < p.columns ? p.bias : nullptr;
      const float2 up = bias_of<T>(second, p.columns + at, 2 * p.columns);
      return packed<T>(
          activate_inline(p.activation, low) * (sums[i + kN / 4] + up.x),
          activate_inline(p.activation, high) * (sums[i + 1 + kN / 4] + up.y));
    } else {
      const float2 before = unpacked<T>(residual);
      return packed<T>(low + before.x, high + before.y);
    }
  }

  __device__ void write(const float (&sums)[kN / 2]) const {
    int thread = threadIdx.x % 128;
    // Else ptxas keeps where all units lie in registers, which the GEMM needs.
    asm volatile("" : "+r"(thread));
    const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    const bool adds = !kGated && p.residual != nullptr;
#pragma unroll
    for (int unit = 0; unit < S::kColumns / 16; ++unit) {
      const int chunk = unit % 4 * 2 + lane / 16;  // of 8 columns, in the box
      const uint32_t address =
          out + unit / 4 * S::kBoxBytes + row * kRowBytes + (chunk ^ row % 8) * 16;
      uint32_t before[4] = {}, after[4];
      if (adds) load_matrices(before, address);
#pragma unroll
      for (int m = 0; m < 4; ++m)
        after[m] = pair(sums, unit * 8 + m * 2, lane, before[m]);
      store_matrices(address, after);
    }
  }
};

#endif

}  // namespace fdjax::matmul

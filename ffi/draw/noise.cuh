// Gumbel noise of a row's tokens: the bits of jax.random, and what they mean.
#pragma once

#include <cstdint>

namespace fdjax::draw {

inline constexpr float kMaxNoise = 22.9f;  // that of the bits 0 is 22.874

// Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3").
__device__ inline uint2 threefry(uint2 key, uint2 x) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key.x, key.y, key.x ^ key.y ^ 0x1bd11bda};
  x.x += keys[0];
  x.y += keys[1];
#pragma unroll
  for (int i = 0; i < 5; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int rotation = kRotations[i % 2][j];
      x.x += x.y;
      x.y = __funnelshift_l(x.y, x.y, rotation) ^ x.x;
    }
    x.x += keys[(i + 1) % 3];
    x.y += keys[(i + 2) % 3] + i + 1;
  }
  return x;
}

// jax.random.fold_in.
__device__ inline uint2 fold_in(uint2 key, uint32_t step) {
  return threefry(key, make_uint2(0, step));
}

// Word `token` of jax.random.bits, as jax_threefry_partitionable lays them out.
__device__ inline uint32_t bits_of(uint2 key, int token) {
  const uint2 x = threefry(key, make_uint2(0, token));
  return x.x ^ x.y;
}

// See fdjax/kernels/draw/noise.py.
__device__ inline float uniform_of(uint32_t bits) {
  const float uniform = (__uint2float_rn(bits) + 0.5f) * 0x1p-32f;
  return fminf(uniform, 1.0f - 0x1p-24f);
}

__device__ inline float gumbel(float uniform) { return -logf(-log1pf(-uniform)); }

}  // namespace fdjax::draw

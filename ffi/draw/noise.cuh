// Gumbel noise of a row's tokens: the bits of jax.random, and what they mean.
#pragma once

#include <cstdint>

namespace fdjax::draw {

inline constexpr float kMaxNoise = 22.9f;  // that of the bits 0 is 22.874

// Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3") of (0, counter), (0, counter + 1) ...: their rounds are interleaved, as
// each waits for the one before.
template <int kCount>
__device__ void threefry(uint2 key, uint32_t counter, uint2 (&x)[kCount]) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key.x, key.y, key.x ^ key.y ^ 0x1bd11bda};
#pragma unroll
  for (int n = 0; n < kCount; ++n) x[n] = make_uint2(keys[0], counter + n + keys[1]);
#pragma unroll
  for (int i = 0; i < 5; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        x[n].x += x[n].y;
        x[n].y = __funnelshift_l(x[n].y, x[n].y, kRotations[i % 2][j]) ^ x[n].x;
      }
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      x[n].x += keys[(i + 1) % 3];
      x[n].y += keys[(i + 2) % 3] + i + 1;
    }
  }
}

// jax.random.fold_in.
__device__ inline uint2 fold_in(uint2 key, uint32_t step) {
  uint2 folded[1];
  threefry(key, step, folded);
  return folded[0];
}

// See fdjax/kernels/draw/noise.py. Of jax.random.bits, as jax_threefry_partitionable
// lays them out, a word is the two of a counter's hash, combined.
__device__ inline float uniform_of(uint2 hash) {
  const float uniform = (__uint2float_rn(hash.x ^ hash.y) + 0.5f) * 0x1p-32f;
  return fminf(uniform, 1.0f - 0x1p-24f);
}

__device__ inline float gumbel(float uniform) { return -logf(-log1pf(-uniform)); }

}  // namespace fdjax::draw

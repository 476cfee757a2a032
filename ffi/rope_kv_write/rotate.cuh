// The rotation of RoPE, for every kernel that does it.
#pragma once

#include "fdjax/vector.cuh"

namespace fdjax::rope_kv_write {

template <typename T>
__device__ void rotate(T& first, T& second, float cosine, float sine) {
  const float x = to_float(first), y = to_float(second);
  first = from_float<T>(x * cosine - y * sine);
  second = from_float<T>(y * cosine + x * sine);
}

// kVec pairs: those of `first` and `second` or, interleaved, neighbours in both.
template <typename T, int kVec>
__device__ void rotate(Vec<T, kVec>& first, Vec<T, kVec>& second, const float* cosines,
                       const float* sines, bool interleaved) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (!interleaved || kVec == 1) {
      rotate(first.values[i], second.values[i], cosines[i], sines[i]);
    } else {  // pair i is at 2 * i and 2 * i + 1 of the two
      Vec<T, kVec>& half = i < kVec / 2 ? first : second;
      const int at = 2 * i % kVec;
      rotate(half.values[at], half.values[at + 1], cosines[i], sines[i]);
    }
  }
}

}  // namespace fdjax::rope_kv_write

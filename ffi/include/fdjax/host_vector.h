// Vectors of floats on a CPU, in the compilers' own extension (GCC's and Clang's).
//
// Functions over them are templates of the vector, and parts of the function that calls
// them: one whose target has registers of 8 floats calls with Lanes8, any other with
// Lanes4.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fdjax/host_float.h"

// On its own, such a function would be compiled for the oldest machines.
#define FDJAX_INLINE inline __attribute__((always_inline))

// A function that may call with Lanes8, where `has_wide_vectors`.
#ifdef __x86_64__
#define FDJAX_WIDE __attribute__((target("avx2,fma")))
#else
#define FDJAX_WIDE
#endif

namespace fdjax {

// Whether the machine has registers of 8 floats: every x86-64 since 2013.
inline bool has_wide_vectors() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

typedef float Lanes4 __attribute__((vector_size(16)));
typedef float Lanes8 __attribute__((vector_size(32)));

template <typename V>
inline constexpr int kLanes = sizeof(V) / sizeof(float);

// What a comparison yields: as many int32_t.
template <typename V>
using Ints = decltype(V{} < V{});

template <typename V>
FDJAX_INLINE V broadcast(float x) {
  return x - V{};
}

template <typename V>
FDJAX_INLINE V load(const float* source) {
  V x;
  std::memcpy(&x, source, sizeof(x));
  return x;
}

template <typename V>
FDJAX_INLINE Ints<V> load_bits(const void* source) {
  typedef uint16_t Halves __attribute__((vector_size(sizeof(V) / 2)));
  Halves x;
  std::memcpy(&x, source, sizeof(x));
  return __builtin_convertvector(x, Ints<V>);
}

template <typename V>
FDJAX_INLINE V load(const HostFloats::bfloat16* source) {
  return std::bit_cast<V>(load_bits<V>(source) << 16);
}

// As `to_float`, which explains it.
template <typename V>
FDJAX_INLINE V load(const HostFloats::float16* source) {
  const Ints<V> bits = load_bits<V>(source), magnitude = bits & 0x7fff;
  const Ints<V> normal = (magnitude << 13) + 0x38000000;
  const Ints<V> special = (magnitude << 13) | 0x7f800000;
  const V subnormal = __builtin_convertvector(magnitude, V) * 0x1p-24f;
  const Ints<V> value = magnitude < 0x400 ? std::bit_cast<Ints<V>>(subnormal)
                                          : (magnitude < 0x7c00 ? normal : special);
  return std::bit_cast<V>(value | ((bits & 0x8000) << 16));
}

// The first `count` elements, and zeros.
template <typename V, typename T>
FDJAX_INLINE V load_some(const T* source, int count) {
  V x{};
  for (int i = 0; i < count; ++i) x[i] = to_float(source[i]);
  return x;
}

template <typename V>
FDJAX_INLINE void store(float* target, V x) {
  std::memcpy(target, &x, sizeof(x));
}

// The sums over the lanes of four vectors.
FDJAX_INLINE void store_sums(float* target, const Lanes4 (&x)[4]) {
  Lanes4 pairs[2];
  for (int i = 0; i < 2; ++i) {
    const Lanes4 a = x[2 * i], b = x[2 * i + 1];
    pairs[i] = __builtin_shufflevector(a, b, 0, 4, 1, 5) +
               __builtin_shufflevector(a, b, 2, 6, 3, 7);
  }
  store(target, __builtin_shufflevector(pairs[0], pairs[1], 0, 1, 4, 5) +
                    __builtin_shufflevector(pairs[0], pairs[1], 2, 3, 6, 7));
}

FDJAX_INLINE void store_sums(float* target, const Lanes8 (&x)[4]) {
  Lanes4 halves[4];
  for (int i = 0; i < 4; ++i) {
    halves[i] = __builtin_shufflevector(x[i], x[i], 0, 1, 2, 3) +
                __builtin_shufflevector(x[i], x[i], 4, 5, 6, 7);
  }
  store_sums(target, halves);
}

// e^x for x <= 0, to about one unit in the last place; 0 where float32 would hold no
// normal number, NaN for NaN.
template <typename V>
FDJAX_INLINE V exp_of_negative(V x) {
  // x = n ln 2 + r, |r| <= ln 2 / 2. The sum with 1.5 * 2^23 has n in its low bits.
  const V shifted = x * 1.44269504f + 12582912.0f;
  const V n = shifted - 12582912.0f;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  // Cephes' expf.
  V p = broadcast<V>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints<V> power = (std::bit_cast<Ints<V>>(shifted) + 127) << 23;
  return x < -87.3f ? V{} : p * std::bit_cast<V>(power);
}

}  // namespace fdjax

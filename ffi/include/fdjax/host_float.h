// The 16 bit floating point types on a CPU: storage, and conversion from and to float.
#pragma once

#include <bit>
#include <cstdint>

namespace fdjax {

struct HostFloats {
  struct bfloat16 {
    uint16_t bits;
  };
  struct float16 {
    uint16_t bits;
  };
};

inline float to_float(float x) { return x; }

inline float to_float(HostFloats::bfloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

inline float to_float(HostFloats::float16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude << 13));
  }
  // XLA runs handlers with subnormal float32 flushed to zero: subnormal float16 must
  // not pass through one.
  const float value = magnitude < 0x400u
                          ? static_cast<float>(magnitude) * 0x1p-24f
                          : std::bit_cast<float>((magnitude << 13) + 0x38000000u);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

template <typename T>
T from_float(float x);

template <>
inline float from_float(float x) {
  return x;
}

template <>
inline HostFloats::bfloat16 from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<uint16_t>(bits >> 16 | 64)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};  // to even
}

template <>
inline HostFloats::float16 from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x47800000u) {  // 2^16 and more
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 the sum's own rounding leaves the subnormal in the low bits of 0.5.
    half =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {  // a rounding carry into the exponent is the right answer
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace fdjax

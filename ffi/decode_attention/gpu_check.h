// Checks of what decode attention's kernel takes, for every handler that launches it.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "decode_attention/arguments.h"

namespace fdjax::decode_attention {

// How the work is cut; config.py says how it is chosen.
struct Cut {
  int64_t parts, splits, heads_per_block, warps;
};

inline ffi::Error check_head_dim(int64_t size) {
  for (const int64_t served : {64, 80, 96, 128, 256}) {
    if (size == served) return ffi::Error::Success();
  }
  return invalid("D is " + std::to_string(size) +
                 "; the handler takes 64, 80, 96, 128 and 256");
}

// What the kernel's tiles and grid have room for.
inline ffi::Error check_kernel(const Dims& d) {
  const bool large = *d.head_dim == 64 || *d.head_dim == 128;
  FDJAX_RETURN_IF_ERROR(
      check_range("Hq / Hkv", *d.q_heads / *d.kv_heads, 1, large ? 16 : 8));
  FDJAX_RETURN_IF_ERROR(check_range("Z", *d.page_size, 8, 128));
  FDJAX_RETURN_IF_ERROR(check_range("B", *d.rows, 0, 65535));
  return check_head_dim(*d.head_dim);
}

// Of a cut that `check_cut` has seen.
inline int part_bits(const Cut& cut) {
  return std::countr_zero(static_cast<uint64_t>(cut.parts));
}

// Floats of what `cut.parts` clusters leave of each query head (parts.cuh).
inline int64_t part_floats(const Cut& cut, const Dims& d) {
  return cut.parts == 1 ? 0 : *d.rows * *d.q_heads * cut.parts * (4 + *d.head_dim);
}

inline ffi::Error check_cut(const Cut& cut, const Dims& d,
                            ffi::Result<ffi::Buffer<ffi::F32>> parts) {
  FDJAX_RETURN_IF_ERROR(check_range("parts", cut.parts, 1, 1 << kMaxPartBits));
  if (!std::has_single_bit(static_cast<uint64_t>(cut.parts))) {
    return invalid("parts is " + std::to_string(cut.parts) +
                   "; it must be a power of two");
  }
  FDJAX_RETURN_IF_ERROR(check_range("B * parts", *d.rows * cut.parts, 0, 65535));
  Dim floats("B * Hq * parts * (4 + D)", part_floats(cut, d));
  FDJAX_RETURN_IF_ERROR(check_shape("parts", parts->dimensions(), {&floats}));
  FDJAX_RETURN_IF_ERROR(check_range("splits", cut.splits, 1, 8));
  if (cut.warps != 4 && cut.warps != 8 && cut.warps != 16) {
    return invalid("warps is " + std::to_string(cut.warps) +
                   "; the handler takes 4, 8 and 16");
  }
  FDJAX_RETURN_IF_ERROR(check_range("heads_per_block", cut.heads_per_block, 1, 8));
  if (cut.warps % cut.heads_per_block != 0 || *d.kv_heads % cut.heads_per_block != 0) {
    return invalid("heads_per_block is " + std::to_string(cut.heads_per_block) +
                   "; it must divide warps = " + std::to_string(cut.warps) +
                   " and Hkv = " + std::to_string(*d.kv_heads));
  }
  return ffi::Error::Success();
}

}  // namespace fdjax::decode_attention

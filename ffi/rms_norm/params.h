// What the rms_norm kernel is given. Sizes are in elements.
#pragma once

#include <cstdint>

namespace fdjax::rms_norm {

struct Params {
  const void* x;      // [rows, size]
  const void* scale;  // [size]
  void* out;          // [rows, size]
  int rows;
  int size;
  float epsilon;
  float scale_offset;
};

}  // namespace fdjax::rms_norm

// What the add_norm kernel is given. Sizes are in elements.
#pragma once

#include <cstdint>

namespace fdjax::add_norm {

struct Params {
  const void* x;      // [rows, size]
  const void* delta;  // [rows, size], or nullptr: nothing is added
  const void* scale;  // [size]
  const void* bias;   // [size], or nullptr: an RMS norm
  void* sum;          // [rows, size]: x + delta; may be either of them
  void* out;          // [rows, size]
  int rows;
  int size;
  float epsilon;
  float scale_offset;
};

}  // namespace fdjax::add_norm

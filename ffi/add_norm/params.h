// What the add_norm kernel is given. Sizes are in elements.
#pragma once

#include <cstdint>

namespace fdjax::add_norm {

struct Params {
  const void* x;            // [rows, size]
  const void* delta;        // [rows, size], or nullptr: nothing is added
  const void* delta_scale;  // [size], of delta's RMS norm; or nullptr: it has none
  const void* scale;        // [size]
  const void* bias;         // [size], or nullptr: an RMS norm
  void* sum;                // [rows, size]: what is normalised; may be x or delta
  void* out;                // [rows, size]
  int rows;
  int size;
  float epsilon;
  float scale_offset;
};

}  // namespace fdjax::add_norm

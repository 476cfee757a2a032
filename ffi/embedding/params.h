// What the embedding kernel is given. Sizes are in elements.
#pragma once

#include <cstdint>

namespace fdjax::embedding {

// Vectors, and which of them each token takes: that of its id and the offset; beyond an
// end the vector there.
struct Table {
  const void* vectors;  // [count, size], or nullptr: none are added
  const int32_t* ids;   // [rows]
  int count;
  int offset;
};

struct Params {
  Table tokens, positions;
  void* out;  // [rows, size]
  int rows;
  int size;
  float scale;  // of the tokens' vectors; 1: none
};

}  // namespace fdjax::embedding

// What the page_move kernel is given.
#pragma once

#include <cstdint>

namespace fdjax::page_move {

inline constexpr int kUnitBytes = 16;     // of one access
inline constexpr int kMaxMoves = 65'535;  // along y of a grid

struct Params {
  void* pages;             // the KV array
  const int32_t* sources;  // [moves]
  const int32_t* targets;  // [moves]
  int64_t page_units;      // of kUnitBytes
  int64_t num_pages;
  int moves;
};

}  // namespace fdjax::page_move

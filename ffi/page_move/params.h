// What the page_move kernel is given.
#pragma once

#include <cstdint>

#include "page_move/limits.h"

namespace fdjax::page_move {

struct Params {
  void* pages;             // the KV array
  const int32_t* sources;  // [moves]
  const int32_t* targets;  // [moves]
  int64_t page_units;      // of kUnitBytes
  int64_t num_pages;
  int moves;
};

}  // namespace fdjax::page_move

// What the page_move kernel is given, and its launch, for handlers: host code, which
// does not compile the kernel.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
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

gpu_error launch_moves(gpu_stream stream, const Params& p);

}  // namespace fdjax::page_move

// What token_places is given.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"

namespace fdjax::token_places {

struct Params {
  const int32_t* page_table;                 // [rows, width]
  const int32_t *lengths, *starts, *firsts;  // [rows], as PageView has them
  int32_t *positions, *slots;                // [tokens]
  int tokens, rows, width, page_size;
};

gpu_error launch_places(gpu_stream stream, const Params& p);

}  // namespace fdjax::token_places

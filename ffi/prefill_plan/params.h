// What prefill_plan is given.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
#include "prefill_attention/params.h"
#include "prefill_plan/limits.h"

namespace fdjax::prefill_plan {

using prefill_attention::Tile;

struct Params {
  const int32_t *lengths, *starts, *firsts;  // [rows], as PageView has them
  Tile* work;                                // [tiles + records]
  int rows;
  int tiles;        // of queries, at most
  int records;      // that pieces of tiles have room for; 0: keys are not cut
  int queries;      // of the call, padding included
  int max_tokens;   // that a row's pages have room for
  int tile_tokens;  // queries of a tile
  int window;       // tokens that a query sees
  float blocks;     // that run at once, for each key/value head
};

gpu_error launch_plan(gpu_stream stream, const Params& p);

}  // namespace fdjax::prefill_plan

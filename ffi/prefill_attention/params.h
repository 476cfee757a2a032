// What prefill_attention is given on any platform.
#pragma once

#include "decode_attention/params.h"

namespace fdjax::prefill_attention {

// Neighbouring new tokens of a row, as tiles.py cuts them.
struct Tile {
  int32_t row;       // of the batch
  int32_t first;     // of its queries, in q and out
  int32_t position;  // of that in its sequence
  int32_t tokens;    // 0: no tile, and none follows
};

struct Params {
  decode_attention::Params attention;  // q and out: [queries, heads, head_dim]
  const Tile* tiles;                   // those that see the most keys first
  int num_tiles;
  int queries;
};

}  // namespace fdjax::prefill_attention

// What prefill_attention is given on any platform.
#pragma once

#include "decode_attention/params.h"

namespace fdjax::prefill_attention {

// Row r's new tokens are lengths[r] - starts[r] neighbouring queries, from firsts[r]
// on; the first of them stands at position starts[r] of its sequence.
struct Params {
  decode_attention::Params attention;  // q and out: [queries, heads, head_dim]
  const int32_t* starts;               // [rows]
  const int32_t* firsts;               // [rows]
  int queries;
};

}  // namespace fdjax::prefill_attention

// What attention_plan is given.
#pragma once

#include "attention_plan/plan.h"

namespace fdjax::attention_plan {

inline constexpr int kMaxItemTokens = 1 << 16;  // costs of a row's pieces fit 32 bits

struct Params {
  const int32_t* lengths;  // [rows]
  int32_t* plan;           // [plan_size]
  Shape shape;
  int item_tokens;  // what an item costs beside its tokens, in tokens of a head
  int room;         // tokens of a row in its pages
  int window;       // tokens a query sees; paged::kAllTokens: all
  // 0: pieces are what is best for all rows. Else each row is cut by itself, into
  // pieces of so many tiles, or kMaxRowPieces larger ones.
  int piece_tiles;
};

}  // namespace fdjax::attention_plan

// What attention_plan is given.
#pragma once

#include "attention_plan/plan.h"
#include "fdjax/divisor.h"

namespace fdjax::attention_plan {

inline constexpr int kMaxItemTokens = 1 << 16;  // costs of a row's pieces fit 32 bits

// Of which pages the plan holds ids: of the tiles with which warps begin the first item
// of their cluster.
struct FirstPages {
  const int32_t* table = nullptr;  // [rows, width]
  int width = 0;
  int warps = 0;      // of a block: a power of two
  int per_block = 0;  // ids: a power of two for each warp. 0: the plan holds none
  Divisor page_size;  // in tokens: whole tiles
  Divisor splits;     // blocks of a cluster
};

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
  FirstPages first_pages;
};

}  // namespace fdjax::attention_plan

// A plan of attention over rows of unequal length: which blocks do what.
//
// FlashInfer's plan and run (its section 3.3): a kernel before the layers turns lengths
// into a list of items of fixed room, which attention of every layer reads. An item is
// what a cluster of blocks does at a time: some key/value heads of a whole row, or one
// head of a piece of a long row. Items are in order of their cost, the largest first,
// and cluster c of `slots` takes those at the places
//     c, 2 * slots - 1 - c, 2 * slots + c, 4 * slots - 1 - c, ...
// so that who began with a large one goes on with a small one.
//
// fdjax/kernels/attention_plan/host.py is the definition.
#pragma once

#include <cstdint>

#include "attention_plan/limits.h"
#include "fdjax/gpu.h"

namespace fdjax::attention_plan {

// What the plan is made for; nothing of it depends on lengths.
struct Shape {
  int rows, kv_heads;
  int slots;       // clusters that run at once
  int heads;       // key/value heads of an item at most: a power of two
  int max_items;   // that the plan has room for
  int max_pieces;  // items of rows that are cut, at most
};

// How a block sees its part of the plan; both halves are read as one access each.
struct alignas(16) Item {
  int row;
  uint16_t kv_head, heads;  // the first, and how many: a power of two
  uint16_t piece, pieces;   // of each head of the row: which, and of how many
  int first, last;          // tiles: from the first to before the last
  int begin, end;           // tokens that the row's query sees; it is the last of them
  int record;               // of the row's first piece, among all that leave one
};
static_assert(sizeof(Item) == kItem * sizeof(int32_t));

// The plan's integers: a header, how many blocks have done their piece of a row and
// head (zero before attention and after it), and the items.
enum Field { kItems, kPieces, kChunkTokens, kCandidate };

__host__ __device__ inline int64_t items_at(int64_t rows, int64_t kv_heads) {
  return kHeader + (rows * kv_heads + 7) / 8 * 8;
}

inline int64_t plan_size(int64_t rows, int64_t kv_heads, int64_t max_items) {
  return items_at(rows, kv_heads) + max_items * kItem;
}

}  // namespace fdjax::attention_plan

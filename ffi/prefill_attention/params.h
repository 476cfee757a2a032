// What prefill_attention is given on any platform.
#pragma once

#include "decode_attention/params.h"
#include "prefill_attention/limits.h"
#include "shared_prefix/limits.h"

namespace fdjax::prefill_attention {

// Neighbouring new tokens of a row and the keys that a block attends to for them: all
// that some of them sees, or a piece of these. The kernel of prefill_plan makes the
// list; in Python, fdjax/kernels/prefill_plan/tiles.py.
struct alignas(16) Tile {
  int32_t row;       // of the batch
  int32_t first;     // of its queries, in q and out
  int32_t position;  // of that in its sequence
  int32_t tokens;    // 0: no tile, and none follows
  int32_t key_begin, key_end;
  int32_t record;  // where a piece leaves its sums; -1: there is one piece alone
  int32_t pieces;  // of the tile, if this is the first of them; 0: it is another
};
static_assert(sizeof(Tile) == kTileIntegers * sizeof(int32_t));

// Of attention_states: what queries find, in place of a result, and a tree of drafts.
struct States {
  float* outputs;         // [queries, heads, head_dim]
  float* log_sums;        // [queries, heads]
  const int32_t* starts;  // [rows]: position of the first new token
  // [queries, tree_words]: a bit for each new token of the row, whether the query sees
  // it. Those without a bit are seen, and so is the query's own; nullptr: all are.
  const uint32_t* tree;
  int tree_words;
};

struct Params {
  decode_attention::Params attention;  // q and out: [queries, heads, head_dim]
  const Tile* tiles;                   // those of the most keys first
  int num_tiles;
  int queries;
  int num_records;  // what pieces have room for
  // [num_records, kv_heads, kTileRows, head_dim] sums, and behind them
  // [num_records, kv_heads, kTileRows, 2]: what their exponents are relative to, and
  // the sums of the weights.
  float* records;
  // Where query i of the list lies in q, or nullptr: it is query i. Then every item
  // leaves a record.
  const int32_t* order = nullptr;
  States states = {};
};

// Where the sums of a query lie that belongs to a group (fdjax/kernels/shared_prefix).
struct alignas(16) Part {
  int32_t record;  // of the first piece; -1: the query is in no group
  int32_t pieces;
  int32_t token;  // of the tile
  int32_t unused;
};
static_assert(sizeof(Part) == shared_prefix::kPartIntegers * sizeof(int32_t));

// To join what queries have found in a prefix that they share, and in their own keys.
struct Joining {
  const Part* parts;   // [levels, queries], of place i of the order
  const float* about;  // [queries, heads, 2]: of what stands in out, as a record has it
  int levels;
};

}  // namespace fdjax::prefill_attention

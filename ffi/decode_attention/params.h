// What the kernel of decode_attention is given, and how it is launched.
#pragma once

#include <cstdint>

namespace fdjax::decode_attention {

// Scores are kept in units of log 2, so that an exponential is one exp2: `scale`, `phi`,
// `low` and `high` are multiplied by log2(e) on the host.
struct Params {
  const void* q;              // [rows, q_heads, head_dim]
  const void* kv;             // keys of this layer in page 0
  const int32_t* page_table;  // [rows, table_width]
  const int32_t* lengths;     // [rows]: tokens, the newest included
  const float* slopes;        // [q_heads], or nullptr
  void* out;                  // [rows, q_heads, head_dim]
  int32_t* recomputed;        // [rows, kv_heads]
  int64_t slot_bytes;         // from a slot to the next: kv_heads * head_dim elements
  uint32_t slots_per_page;    // from a page to the next, in slots: L * 2 * page_size
  uint32_t page_size;         // also the distance from keys to values, in slots
  uint32_t page_reciprocal;   // ceil(2^32 / page_size)
  uint32_t num_pages;
  int rows;
  int kv_heads;
  int group;  // query heads of a key/value head
  int head_dim;
  int table_width;
  int window;        // tokens a query sees; INT32_MAX: all
  float scale;       // of the raw products; with a soft cap: scale / soft_cap
  float soft_cap;    // 0: none
  float phi;         // the unified maximum
  float low, high;   // a row's largest score must lie strictly between them
  bool unified;      // asynchronous scheme, or the synchronised one throughout
  int head_count;    // key/value heads of a block
};

// How the work is cut; see config.py for how it is chosen.
struct Launch {
  int splits;           // blocks along a row's tokens: one cluster
  int heads_per_block;  // key/value heads a block serves; divides kv_heads
  // The kernel before this one in the stream may still run when this one starts. It
  // must not write anything but q and the keys and values of the newest tokens.
  bool programmatic;
};

}  // namespace fdjax::decode_attention

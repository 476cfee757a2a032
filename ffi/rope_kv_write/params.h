// What both implementations of rope_kv_write are given.
#pragma once

#include <cstdint>

#include "paged/view.h"
#include "rope_kv_write/limits.h"

namespace fdjax::rope_kv_write {

struct Params {
  const void* qkv;           // [tokens, q_heads + 2 * kv_heads, head_dim]
  const int32_t* positions;  // [tokens]
  const int32_t* slots;      // [tokens]: page * page_size + place
  const float* frequencies;  // [num_frequencies]
  void* query;               // [tokens, q_heads, head_dim]
  paged::Layout pages;       // where keys and values go
  int tokens;
  int q_heads;
  int kv_heads;
  int head_dim;
  int num_frequencies;
  bool interleaved;
};

}  // namespace fdjax::rope_kv_write

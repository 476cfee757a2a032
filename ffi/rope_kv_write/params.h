// What both implementations of rope_kv_write are given. Sizes are in elements.
#pragma once

#include <cstdint>

#include "rope_kv_write/limits.h"

namespace fdjax::rope_kv_write {

struct Params {
  const void* qkv;           // [tokens, q_heads + 2 * kv_heads, head_dim]
  const int32_t* positions;  // [tokens]
  const int32_t* slots;      // [tokens]
  const float* frequencies;  // [num_frequencies]
  void* query;               // [tokens, q_heads, head_dim]
  void* kv;                  // keys of this layer in page 0
  int64_t num_slots;         // pages * page_size
  int64_t page_stride;       // from a page to the next
  int64_t value_offset;      // from a page's keys to its values
  int tokens;
  int q_heads;
  int kv_heads;
  int head_dim;
  int num_frequencies;
  int page_size;
  bool interleaved;
};

}  // namespace fdjax::rope_kv_write

// Where a token's key lies in the KV array, by the page table.
#pragma once

#include <cstdint>

#include "decode_attention/params.h"

namespace fdjax::decode_attention {

inline constexpr int kAbsent = -1;

// In slots, counted as Params::slots_per_page; `absent` where the table has no page for
// the token, of which nothing may be read.
__device__ inline int slot_of(const Params& p, int row, uint32_t token,
                              int absent = kAbsent) {
  const uint32_t index = __umulhi(token, p.page_reciprocal);  // token / page_size
  const uint32_t page = __ldg(p.page_table + int64_t{row} * p.table_width + index);
  if (page >= p.num_pages) return absent;
  return static_cast<int>(page * p.slots_per_page + (token - index * p.page_size));
}

}  // namespace fdjax::decode_attention

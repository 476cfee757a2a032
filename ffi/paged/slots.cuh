// Where a token's key lies in the KV array, by the page table.
#pragma once

#include <cstdint>

#include "decode_attention/ptx.cuh"
#include "paged/view.h"

namespace fdjax::paged {

inline constexpr int kAbsent = -1;

// token / page_size. Where pages may have one token (`kAnySize`: copies by threads, and
// by slot), there is no reciprocal of it, and a test.
template <bool kAnySize>
__device__ inline uint32_t index_of(const View& p, uint32_t token) {
  if (kAnySize && p.page_reciprocal == 0) return token;
  return __umulhi(token, p.page_reciprocal);
}

// What the page table has for a token: a page's id, or what is none.
template <bool kAnySize = false>
__device__ inline uint32_t page_of(const View& p, int row, uint32_t token) {
  return decode_attention::load_kept(p.page_table + int64_t{row} * p.table_width +
                                     index_of<kAnySize>(p, token));
}

// In slots, counted as Layout::slots_per_page; `absent` where `page` is none, of which
// nothing may be read.
template <bool kAnySize = false>
__device__ inline int slot_in(const View& p, uint32_t page, uint32_t token,
                              int absent = kAbsent) {
  if (page >= p.num_pages) return absent;
  const uint32_t index = index_of<kAnySize>(p, token);
  return static_cast<int>(page * p.slots_per_page + (token - index * p.page_size));
}

template <bool kAnySize = false>
__device__ inline int slot_of(const View& p, int row, uint32_t token) {
  return slot_in<kAnySize>(p, page_of<kAnySize>(p, row, token), token);
}

// Where a head's key begins in its slot, or its value, in lines of 128 bytes: for TMA.
__device__ inline int line_of(const View& p, int kv_head, bool of_value) {
  return static_cast<int>((p.head_bytes * kv_head + (of_value ? p.value_bytes : 0)) /
                          128);
}

}  // namespace fdjax::paged

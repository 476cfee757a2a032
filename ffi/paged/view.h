// Where keys and values of rows lie: the KV array, and the table of a row's pages. In
// Python: `PageLayout` and `PageView` (fdjax/kernels/paged).
#pragma once

#include <cstdint>

#include "fdjax/host_device.h"

namespace fdjax::paged {

// The pages of one layer. A slot is what a token has of a page: its keys, or its
// values; both, where they are interleaved.
struct Layout {
  void* kv;                 // keys of this layer in page 0
  int64_t slot_bytes;       // from a token's slot to the next one's
  uint32_t head_bytes;      // from a head to the next one, in a slot
  uint32_t slots_per_page;  // from a page to the next, in slots
  uint32_t page_size;       // in tokens
  uint32_t value_slots;     // from a key to its value: whole slots,
  uint32_t value_bytes;     // and bytes behind them; one of the two is 0
  uint32_t num_pages;

  // From a key to its value.
  FDJAX_HOST_DEVICE constexpr int64_t value_offset() const {
    return value_slots * slot_bytes + value_bytes;
  }
};

// A layout, and which pages rows have.
struct View : Layout {
  const int32_t* page_table;  // [rows, table_width]
  const int32_t* lengths;     // [rows]: tokens, the newest included
  uint32_t page_reciprocal;   // ceil(2^32 / page_size), see page_reciprocal_of
  int rows;
  int table_width;
};

// What slot_address gives for a slot that no page has.
inline constexpr int64_t kNowhere = -1;

// From `kv` to the key of a token, in bytes; `slot`: its page times the page size, plus
// its place in it.
FDJAX_HOST_DEVICE constexpr int64_t slot_address(const Layout& layout, int slot) {
  const int64_t slots = int64_t{layout.num_pages} * layout.page_size;
  if (slot < 0 || slot >= slots) return kNowhere;
  const uint32_t page = static_cast<uint32_t>(slot) / layout.page_size;
  const uint32_t place = static_cast<uint32_t>(slot) % layout.page_size;
  return (int64_t{page} * layout.slots_per_page + place) * layout.slot_bytes;
}

// token / page_size is the upper half of token * reciprocal for tokens below 2^25 and
// page sizes from 2 to 128. 0: a page is one token.
constexpr uint32_t page_reciprocal_of(uint32_t page_size) {
  return static_cast<uint32_t>(((uint64_t{1} << 32) + page_size - 1) / page_size);
}

// The same array in pages of one slot: the page table has a slot for each token,
// counted as `slots_per_page` counts them.
template <typename SomeView>
constexpr SomeView by_slot(SomeView view) {
  view.num_pages *= view.slots_per_page;
  view.slots_per_page = 1;
  view.page_size = 1;
  return view;
}

// From a layer's keys to the next one's, where pages have several layers.
constexpr int64_t layer_bytes(const Layout& layout) {
  return int64_t{2} * layout.page_size * layout.slot_bytes;
}

// From this layer's keys in page 0 to the end of its values in the last page.
constexpr uint64_t slots_of(const Layout& layout) {
  return uint64_t{layout.num_pages - 1} * layout.slots_per_page + layout.page_size +
         layout.value_slots;
}

}  // namespace fdjax::paged

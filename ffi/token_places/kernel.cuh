// token_places on a GPU: a thread finds the row of its token, and there its place.
#pragma once

#include <cstdint>

#include "token_places/params.h"

namespace fdjax::token_places {

inline constexpr int kThreads = 128;

// The last row that has begun, if any has; `firsts` are in ascending order.
__device__ inline int row_of(const Params& p, int token) {
  int low = 0;  // rows that have begun
  for (int count = p.rows; count > 0;) {
    const int half = count / 2;
    if (p.firsts[low + half] <= token) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return max(low - 1, 0);
}

__global__ void __launch_bounds__(kThreads)
    places_kernel(FDJAX_GRID_CONSTANT const Params p) {
  const int token = blockIdx.x * kThreads + threadIdx.x;
  if (token >= p.tokens) return;
  const int row = row_of(p, token);
  const int position = token + p.starts[row] - p.firsts[row];
  const int index = position / p.page_size, place = position % p.page_size;
  int slot = -1;
  const bool is_new = position >= max(p.starts[row], 0) && position < p.lengths[row];
  if (is_new && index < p.width) {
    // The id of an absent page may be any; what is counted beyond 32 bits would be some
    // other page's slot.
    const auto page =
        static_cast<uint32_t>(p.page_table[int64_t{row} * p.width + index]);
    if (page < (uint32_t{1} << 31) / p.page_size) {
      slot = static_cast<int>(page) * p.page_size + place;
    }
  }
  p.positions[token] = position;
  p.slots[token] = slot;
}

}  // namespace fdjax::token_places

// What the handlers of prefill_attention take, beside what every attention over pages
// does (decode_attention/limits.h, paged/limits.h), and what its lists hold.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::prefill_attention {

inline constexpr int kTileRows = 128;    // queries of a tile times heads of a group
inline constexpr int kTileIntegers = 8;  // of a Tile
inline constexpr int kMaxHeadDim = 256;  // on a GPU, in steps of kHeadMultiple
inline constexpr int kHeadMultiple = 8;
inline constexpr int kMaxPageSize = 128;
inline constexpr int kMaxKvHeads = 65'535;  // along y of a grid

inline constexpr Limit kLimits[] = {{"tile_rows", kTileRows},
                                    {"tile_integers", kTileIntegers},
                                    {"max_head_dim", kMaxHeadDim},
                                    {"head_multiple", kHeadMultiple},
                                    {"max_page_size", kMaxPageSize}};

}  // namespace fdjax::prefill_attention

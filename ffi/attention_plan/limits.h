// What the handler of attention_plan takes, and what a plan's parts take of it.
#pragma once

#include <cstdint>

#include "fdjax/limit.h"

namespace fdjax::attention_plan {

inline constexpr int kMaxRows = 4096;       // the block that makes the plan holds them
inline constexpr int kMaxSlots = 65'535;    // along y of a grid
inline constexpr int kMaxHeads = 8;         // of an item
inline constexpr int kMaxPieces = 1 << 11;  // a tile times a piece fits 32 bits
inline constexpr int kMaxItems = INT32_MAX / 8;
inline constexpr int kMaxRowPieces = 16;  // of a row and head that is cut by itself
inline constexpr int kMaxKvHeads = UINT16_MAX;
inline constexpr int kTileTokens = 16;  // what pieces are counted in
inline constexpr int kHeader = 8;       // integers before the counters
inline constexpr int kItem = 8;         // integers of an item

inline constexpr Limit kLimits[] = {{"max_rows", kMaxRows},
                                    {"max_heads", kMaxHeads},
                                    {"max_row_pieces", kMaxRowPieces},
                                    {"tile_tokens", kTileTokens},
                                    {"header", kHeader},
                                    {"item", kItem}};

}  // namespace fdjax::attention_plan

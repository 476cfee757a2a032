// What the handler of prefill_plan takes, and the constants of its definition
// (fdjax/kernels/prefill_plan/tiles.py).
#pragma once

#include "fdjax/limit.h"

namespace fdjax::prefill_plan {

inline constexpr int kMaxRows = 4096;  // the block that makes the plan holds them
// Tiles, and pieces, where keys are cut: a thread has one of each.
inline constexpr int kMaxPieces = 1024;
inline constexpr int kMaxTiles = 1 << 20;  // those of 1,024 rows fit 32 bits
inline constexpr int kKeyTile = 128;       // keys of a piece are a multiple of these
inline constexpr int kPieceCost = 2;  // of beginning and ending one, in tiles of keys
inline constexpr int kMaxShare = 4;   // pieces that a block may get: 1 to so many

inline constexpr Limit kLimits[] = {
    {"max_rows", kMaxRows}, {"max_pieces", kMaxPieces}, {"max_tiles", kMaxTiles},
    {"key_tile", kKeyTile}, {"piece_cost", kPieceCost}, {"max_share", kMaxShare}};

}  // namespace fdjax::prefill_plan

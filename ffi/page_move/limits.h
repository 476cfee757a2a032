// What the handler of page_move takes.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::page_move {

inline constexpr int kUnitBytes = 16;     // of one access: pages are multiples of it
inline constexpr int kMaxMoves = 65'535;  // along y of a grid

inline constexpr Limit kLimits[] = {{"unit_bytes", kUnitBytes},
                                    {"max_moves", kMaxMoves}};

}  // namespace fdjax::page_move

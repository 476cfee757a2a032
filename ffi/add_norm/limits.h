// What the handlers of add_norm take.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::add_norm {

inline constexpr int kThreads = 512;
inline constexpr int kUnitBytes = 16;  // of one access: rows are multiples of it
// What the largest instance keeps of a row in registers: four accesses a thread.
inline constexpr int kMaxRowBytes = 4 * kThreads * kUnitBytes;

inline constexpr Limit kLimits[] = {{"unit_bytes", kUnitBytes},
                                    {"max_row_bytes", kMaxRowBytes}};

}  // namespace fdjax::add_norm

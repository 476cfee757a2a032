// What the handler of embedding takes.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::embedding {

inline constexpr int kUnitBytes = 16;  // of one access: vectors are multiples of it

inline constexpr Limit kLimits[] = {{"unit_bytes", kUnitBytes}};

}  // namespace fdjax::embedding

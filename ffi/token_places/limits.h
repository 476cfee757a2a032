// What the handler of token_places takes.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::token_places {

inline constexpr int kMaxPageSize = 1 << 16;

inline constexpr Limit kLimits[] = {{"max_page_size", kMaxPageSize}};

}  // namespace fdjax::token_places

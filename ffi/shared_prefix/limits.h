// What the handler of shared_prefix takes, beside what prefill_attention's kernels do.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::shared_prefix {

inline constexpr int kMaxLevels = 2;     // groups of a query, one within the other
inline constexpr int kPartIntegers = 4;  // of a Part

inline constexpr Limit kLimits[] = {{"max_levels", kMaxLevels},
                                    {"part_integers", kPartIntegers}};

}  // namespace fdjax::shared_prefix

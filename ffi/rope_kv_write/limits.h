// What the handlers of rope_kv_write take.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::rope_kv_write {

// Each token's cosines and sines are held in a table of this many entries.
inline constexpr int kMaxFrequencies = 1024;

inline constexpr Limit kLimits[] = {{"max_frequencies", kMaxFrequencies}};

}  // namespace fdjax::rope_kv_write

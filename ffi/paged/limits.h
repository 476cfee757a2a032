// What every attention over pages takes.
#pragma once

#include <cstdint>

#include "fdjax/limit.h"

namespace fdjax::paged {

// Of a row: unified weights' sums are finite.
inline constexpr int kMaxTokens = 1 << 25;
inline constexpr int kMaxSlots =
    INT32_MAX;  // of the KV array, of all layers and halves
inline constexpr int kAllTokens = INT32_MAX;  // a window that is none

inline constexpr Limit kLimits[] = {
    {"max_tokens", kMaxTokens}, {"max_slots", kMaxSlots}, {"all_tokens", kAllTokens}};

}  // namespace fdjax::paged

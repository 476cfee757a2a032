// What the handler of draw takes.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::draw {

// Blocks of a cluster, which share a row, and tokens that one of them can hold. Every
// GPU that has clusters has them of 8 blocks.
inline constexpr int kMaxBlocks = 16, kSafeBlocks = 8;
inline constexpr int kMaxBlockVocab = 48 * 1024;
inline constexpr int kMaxVocab = kSafeBlocks * kMaxBlockVocab;
inline constexpr int kMaxRows = (1 << 30) / kMaxBlocks;

inline constexpr Limit kLimits[] = {{"max_vocab", kMaxVocab}, {"max_rows", kMaxRows}};

}  // namespace fdjax::draw

// What the handler of layer_program takes, beside what the kernels that it launches do.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::layer_program {

inline constexpr int kAlignment = 256;  // of a block of memory, for TMA and the library
inline constexpr int kOffsetBits = 40;  // of an operand: the region is above them
inline constexpr int kMaxHeadDim = 256;  // of norms of heads, in steps of kUnit
inline constexpr int kUnit = 8;          // elements of one access: 16 bytes

inline constexpr Limit kLimits[] = {{"alignment", kAlignment},
                                    {"offset_bits", kOffsetBits},
                                    {"max_head_dim", kMaxHeadDim},
                                    {"unit", kUnit}};

}  // namespace fdjax::layer_program

// What the handlers of decode_attention take, beside what every attention over pages
// does (paged/limits.h).
#pragma once

#include "fdjax/limit.h"

namespace fdjax::decode_attention {

// On a CPU a head's sums lie on the stack.
inline constexpr int kMaxHostHeadDim = 1024;
inline constexpr int kMaxLanes = 8;  // float32 of the widest vectors

inline constexpr int kHeadDims[] = {64, 80, 96, 128, 256};
inline constexpr int kMaxPageSize = 128;
inline constexpr int kHeadMultiple = 8;  // elements that are copied at once
// Query heads of a key/value head. Heads of other sizes have no kernel for larger
// groups: no model has them.
inline constexpr int kMaxGroup = 8, kMaxLargeGroup = 16;
inline constexpr int kLargeGroupHeadDims[] = {64, 128};
// The launch config. Every GPU that has clusters has them of 8 blocks.
inline constexpr int kMaxSplits = 8;
inline constexpr int kMaxHeads = 8;   // of a block
inline constexpr int kMaxWarps = 16;  // of a block; see Geometry::kMaxWarps

inline constexpr Limit kLimits[] = {{"max_host_head_dim", kMaxHostHeadDim},
                                    {"max_lanes", kMaxLanes},
                                    {"head_dims", kHeadDims},
                                    {"max_page_size", kMaxPageSize},
                                    {"head_multiple", kHeadMultiple},
                                    {"max_group", kMaxGroup},
                                    {"max_large_group", kMaxLargeGroup},
                                    {"large_group_head_dims", kLargeGroupHeadDims},
                                    {"max_splits", kMaxSplits},
                                    {"max_heads", kMaxHeads},
                                    {"max_warps", kMaxWarps}};

}  // namespace fdjax::decode_attention

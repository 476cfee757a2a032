// The launch, for handlers: host code, which does not compile the kernels.
#pragma once

#include "draw/params.h"
#include "fdjax/gpu.h"

namespace fdjax::draw {

// Blocks of a cluster, which share a row, and tokens that one of them can hold. Every
// GPU that has clusters has them of 8 blocks.
inline constexpr int kMaxBlocks = 16, kSafeBlocks = 8;
inline constexpr int kMaxBlockVocab = 48 * 1024;
inline constexpr int kMaxVocab = kSafeBlocks * kMaxBlockVocab;
inline constexpr int kMaxRows = (1 << 30) / kMaxBlocks;

// For GPUs of sm_90. The caller has checked that there are 1 to `kMaxVocab` tokens and
// 1 to `kMaxRows` rows.
gpu_error launch_draw(gpu_stream stream, const Params& p);

}  // namespace fdjax::draw

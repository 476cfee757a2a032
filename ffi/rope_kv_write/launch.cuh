// The launch of rope_kv_write.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fdjax/launch.h"
#include "rope_kv_write/kernel.cuh"
#include "rope_kv_write/launch.h"

namespace fdjax::rope_kv_write {

// Blocks worth launching: a few for each SM of any GPU. With fewer tokens,
// a token's heads are spread over several blocks.
inline constexpr int kBlocks = 1024;

inline bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

template <typename T, int kVec>
gpu_error launch_units(gpu_stream stream, const Params& p) {
  const int units = (p.q_heads + 2 * p.kv_heads) * (p.head_dim / (2 * kVec));
  const int groups = (units + kThreads - 1) / kThreads;
  const int wanted = (kBlocks + p.tokens - 1) / p.tokens;
  const Launch how{.stream = stream,
                   .grid = dim3(p.tokens, std::min(groups, wanted)),
                   .threads = kThreads};
  return launch(how, kernel<T, kVec>, p);
}

template <typename T>
gpu_error launch_tokens(gpu_stream stream, const Params& p) {
  constexpr int kVec = 16 / sizeof(T);
  const bool vectors = p.head_dim % (2 * kVec) == 0 && p.num_frequencies % kVec == 0 &&
                       aligned(p.qkv) && aligned(p.query) && aligned(p.pages.kv);
  return vectors ? launch_units<T, kVec>(stream, p) : launch_units<T, 1>(stream, p);
}

}  // namespace fdjax::rope_kv_write

// The launch: how many blocks share a row, and what they hold of it.
#pragma once

#include <algorithm>

#include "draw/kernel.cuh"
#include "draw/launch.h"
#include "fdjax/launch.h"

namespace fdjax::draw {

inline constexpr int kThreads = 512;

// Few blocks a row where rows alone fill the machine; more than they can hold take
// more.
inline int blocks_of(const Params& p) {
  if (p.vocab <= 4 * kLoads * kThreads) return 1;
  return p.rows <= 8 ? kMaxBlocks : kSafeBlocks;
}

template <int kThreads>
gpu_error launch_rows(gpu_stream stream, const Params& p, int blocks) {
  const bool draws = p.keys != nullptr;
  const int packs = (p.vocab + 6) / 4;  // as a row may begin inside of a pack
  const int share = (packs + blocks - 1) / blocks * static_cast<int>(sizeof(float4));
  const int list = kRoom * static_cast<int>(sizeof(uint2));
  const Launch how{
      .stream = stream,
      .grid = dim3(p.rows * blocks),
      .threads = kThreads,
      .shared_bytes =
          draws ? static_cast<int>(sizeof(Shared)) + std::max(share, list) : 0,
      .cluster = blocks};
  return launch(how, draws ? draw_rows<kThreads> : take_highest<kThreads>, p, blocks);
}

}  // namespace fdjax::draw

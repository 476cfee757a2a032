// The launch: how many blocks share a row, and what they hold of it.
#pragma once

#include <algorithm>

#include "draw/kernel.cuh"
#include "draw/launch.h"
#include "fdjax/launch.h"

namespace fdjax::draw {

inline constexpr int kThreads = 512;

// Blocks of a row, a power of two. On an H200, with 128,256 tokens, 16 are the fastest
// for 1 row and 8 for 8, greedy or not; 2 for 64 and 256 greedy rows, 8 if they draw.
// What lies between was not measured.
inline int blocks_of(const Params& p) {
  if (p.vocab <= 4 * kLoads * kThreads) return 1;  // read at once
  if (p.rows <= 4) return kMaxBlocks;
  if (p.keys != nullptr || p.rows <= 16) return kSafeBlocks;
  return p.rows <= 32 ? 4 : 2;
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

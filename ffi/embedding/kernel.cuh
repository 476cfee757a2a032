// embedding on a GPU: one block a token, 16 bytes a thread at a time.
//
//   out[t] = tokens[id(t)] * scale + positions[id(t) + offset]
//
// Rounded after each step, as the definition does. What it reads and writes is 8 KB a
// token of a large model: its time is that of three trips to memory in a row.
#pragma once

#include "embedding/launch.h"
#include "fdjax/gpu.h"
#include "fdjax/vector.cuh"

namespace fdjax::embedding {

inline constexpr int kThreads = 256;

// The vector of a token.
template <typename P>
__device__ const P* vector_of(const Table& table, int row, int packs) {
  const int id = min(max(table.ids[row] + table.offset, 0), table.count - 1);
  return static_cast<const P*>(table.vectors) + int64_t{id} * packs;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) kernel(FDJAX_GRID_CONSTANT const Params p) {
  using P = Vec<T, kVec<T>>;
  const int row = blockIdx.x, packs = p.size / kVec<T>;
  const P* token = vector_of<P>(p.tokens, row, packs);
  const P* position =
      p.positions.vectors == nullptr ? nullptr : vector_of<P>(p.positions, row, packs);
  const float scale = to_float(from_float<T>(p.scale));
  P* out = static_cast<P*>(p.out) + int64_t{row} * packs;
  for (int at = threadIdx.x; at < packs; at += kThreads) {
    P x = token[at], added{};
    if (position != nullptr) added = position[at];
#pragma unroll
    for (int i = 0; i < kVec<T>; ++i) {
      T& value = x.values[i];
      if (p.scale != 1.0f) value = from_float<T>(to_float(value) * scale);
      if (position != nullptr) {
        value = from_float<T>(to_float(value) + to_float(added.values[i]));
      }
    }
    out[at] = x;
  }
}

}  // namespace fdjax::embedding

// The pieces of a cut row: what each leaves, and how the last one done adds them.
//
// A row that would keep its blocks longer than others theirs is cut into pieces
// (attention_plan/plan.h). Each leaves a record in device memory and counts itself;
// the block that finds all others counted adds the records, in the order of pieces
// whoever it is, and sets the counter back. Nobody waits.
#pragma once

#include <cstdint>

#include "decode_attention/params.h"
#include "decode_attention/sums.cuh"
#include "decode_attention/tiles.cuh"
#include "fdjax/gpu.h"
#include "fdjax/mma.cuh"

namespace fdjax::decode_attention {

// What piece `piece` of a row and its key/value head leaves of query head `column`,
// kUnits float4 of sums behind one that says
//   x: the number that its exponents are relative to,
//   y: the sum of its weights,
//   z: 1 if it was computed again.
template <int kUnits>
__device__ float4* record_of(const Params& p, const Item& item, int piece, int column) {
  const int64_t of_head = item.record + int64_t{item.kv_head} * item.pieces + piece;
  return reinterpret_cast<float4*>(p.records) +
         (of_head * p.group + column) * (1 + kUnits);
}

// Whether all other blocks of the row and head have left their records. The same for
// all threads of the block, whose writes are visible to whom it is said.
__device__ inline bool is_last_done(const Params& p, const Block& block) {
  __shared__ bool is_last;
  __syncthreads();  // all have written: the fence is for all of them
  if (threadIdx.x == 0) {
    int32_t* const done =
        p.plan + attention_plan::kHeader + block.row() * p.kv_heads + block.kv_head();
    const int all = block.item.pieces * block.splits;
    __threadfence();
    is_last = atomicAdd(done, 1) == all - 1;
    if (is_last) *done = 0;  // as the next layer wants to find it
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

// Whether a query head's largest score left the bounds. A piece within them keeps its
// sums; of others the records have the largest score.
template <int kUnits>
__device__ bool left_bounds(const Params& p, const Item& item, int column) {
  bool above = false, inside = false, sees = false;
  for (int piece = 0; piece < item.pieces; ++piece) {
    const float4 about = __ldcg(record_of<kUnits>(p, item, piece, column));
    const bool again = about.z != 0.0f;
    above |= again && about.x >= p.high;
    inside |= about.y > 0.0f && !again;
    sees |= about.y > 0.0f;
  }
  return above || (sees && !inside);
}

// Adds the records of all pieces.
template <typename T, int kUnits>
__device__ void merge(const Params& p, const Block& block) {
  const Item& item = block.item;
  for (int i = threadIdx.x; i < p.group * kUnits; i += blockDim.x) {
    const int column = i / kUnits, unit = i % kUnits;
    Sum sum;
    add_parts(
        item.pieces,
        [&](int piece, float2& about, float4& values) {
          const float4* record = record_of<kUnits>(p, item, piece, column);
          const float4 first = __ldcg(record);
          about = {first.x, first.y};
          values = __ldcg(record + 1 + unit);
        },
        sum);
    if (p.about != nullptr && unit == 0) {
      reinterpret_cast<float2*>(p.about)[block.query_head(p) + column] = {sum.base,
                                                                          sum.total};
    }
    const float inverse = sum.total > 0.0f ? 1.0f / sum.total : 0.0f;
    static_cast<uint2*>(p.out)[block.query_head(p) * kUnits + i] =
        pack(T{}, sum.values, inverse);
  }
  const int count = __syncthreads_count(p.unified && threadIdx.x < p.group &&
                                        left_bounds<kUnits>(p, item, threadIdx.x));
  if (threadIdx.x == 0) {
    p.recomputed[int64_t{block.row()} * p.kv_heads + block.kv_head()] = count;
  }
}

}  // namespace fdjax::decode_attention

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

// Adds the records of all pieces, as many loads on their way as registers hold.
template <typename T, int kUnits>
__device__ void merge(const Params& p, const Block& block) {
  constexpr int kTogether = 8;
  const Item& item = block.item;
  for (int i = threadIdx.x; i < p.group * kUnits; i += blockDim.x) {
    const int column = i / kUnits, unit = i % kUnits;
    float base = -INFINITY, total = 0.0f;
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
    for (int first = 0; first < item.pieces; first += kTogether) {
      float4 about[kTogether], parts[kTogether];
      float raised = base;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int piece = min(first + j, item.pieces - 1);
        const float4* record = record_of<kUnits>(p, item, piece, column);
        about[j] = __ldcg(record);
        parts[j] = __ldcg(record + 1 + unit);
        if (first + j >= item.pieces) about[j].y = 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (about[j].y > 0.0f) raised = fmaxf(raised, about[j].x);
      }
      const float before = total > 0.0f ? exp2_approx(base - raised) : 0.0f;
      base = raised;
      total *= before;
      float4 scaled{0.0f, 0.0f, 0.0f, 0.0f};
      add_scaled(scaled, sum, before);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const float factor = about[j].y > 0.0f ? exp2_approx(about[j].x - base) : 0.0f;
        total += about[j].y * factor;
        add_scaled(scaled, parts[j], factor);
      }
      sum = scaled;
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    static_cast<uint2*>(p.out)[block.query_head(p) * kUnits + i] =
        pack(T{}, sum, inverse);
  }
  const int count = __syncthreads_count(p.unified && threadIdx.x < p.group &&
                                        left_bounds<kUnits>(p, item, threadIdx.x));
  if (threadIdx.x == 0) {
    p.recomputed[int64_t{block.row()} * p.kv_heads + block.kv_head()] = count;
  }
}

}  // namespace fdjax::decode_attention

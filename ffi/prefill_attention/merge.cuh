// The pieces of tiles whose keys were shared out among blocks: what they left is added,
// in the order of pieces.
#pragma once

#include "decode_attention/sums.cuh"
#include "fdjax/pdl.cuh"
#include "prefill_attention/finish.cuh"

namespace fdjax::prefill_attention {

inline constexpr int kMergeThreads = 256;
inline constexpr int kMergeRows = 16;  // of a block

using decode_attention::add_parts, decode_attention::pack, decode_attention::Sum,
    decode_attention::unpack;

// `unit`: which four dimensions of row `row` of a tile.
__device__ inline void add_pieces(const Params& p, int record, int pieces, int kv_head,
                                  int row, int unit, Sum& sum) {
  add_parts(
      pieces,
      [&](int piece, float2& about, float4& values) {
        const Record of_piece(p, record + piece, kv_head, row);
        about = __ldcg(of_piece.about);
        values = __ldcg(reinterpret_cast<const float4*>(of_piece.sums) + unit);
      },
      sum);
}

// Whether some piece of a row's keys was computed again: others are relative to the
// unified maximum.
__device__ inline bool was_recomputed(const Params& p, const Work& work, int row) {
  bool again = false;
  for (int piece = 0; piece < work.pieces; ++piece) {
    const float2 about =
        __ldcg(Record(p, work.record + piece, work.kv_head, row).about);
    again |= about.y > 0.0f && about.x != p.attention.phi;
  }
  return again;
}

// A query head's four dimensions `unit` of what attention leaves.
template <typename T, Use kUse>
__device__ void store_sum(const Params& params, int64_t offset, int unit,
                          const Sum& sum) {
  const float factor = sum.total > 0.0f ? 1.0f / sum.total : 0.0f;
  if constexpr (kUse == Use::kStates) {
    float4 out{0.0f, 0.0f, 0.0f, 0.0f};
    decode_attention::add_scaled(out, sum.values, factor);
    reinterpret_cast<float4*>(params.states.outputs + offset)[unit] = out;
    if (unit == 0) {
      params.states.log_sums[offset / params.attention.head_dim] =
          log_sum_of(sum.base, sum.total);
    }
  } else {
    T* const out = static_cast<T*>(params.attention.out) + offset;
    reinterpret_cast<uint2*>(out)[unit] = pack(T{}, sum.values, factor);
  }
}

// Grid: tiles, key/value heads, parts of kMergeRows rows. Most tiles are whole, or not
// the first piece of theirs.
template <typename T, Use kUse>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(FDJAX_GRID_CONSTANT const Params params) {
  pdl_wait();
  const Tile& tile = params.tiles[blockIdx.x];
  if (tile.record < 0 || tile.pieces == 0 || tile.tokens == 0) return;
  const decode_attention::Params& p = params.attention;
  const Work work{tile, static_cast<int>(blockIdx.y)};
  const int units = p.head_dim / 4;
  for (int i = threadIdx.x; i < kMergeRows * units; i += kMergeThreads) {
    const int row = blockIdx.z * kMergeRows + i / units, unit = i % units;
    const RowPlace place(p, row);
    if (place.token >= work.tokens) return;
    Sum sum;
    add_pieces(params, work.record, work.pieces, work.kv_head, row, unit, sum);
    store_sum<T, kUse>(params, place.offset(p, work), unit, sum);
    if (p.unified && unit == 0 && was_recomputed(params, work, row)) {
      atomicAdd(p.recomputed + work.row, 1);
    }
  }
}

// Joins what queries have found in a prefix that they share, and in their own keys.
// Grid: queries in their order, key/value heads.
template <typename T>
__global__ void __launch_bounds__(kMergeThreads)
    join_kernel(FDJAX_GRID_CONSTANT const Params params,
                FDJAX_GRID_CONSTANT const Joining joining) {
  Part parts[shared_prefix::kMaxLevels];
#pragma unroll
  for (int level = 0; level < shared_prefix::kMaxLevels; ++level) {
    parts[level] = level < joining.levels
                       ? joining.parts[level * params.queries + blockIdx.x]
                       : Part{-1, 0, 0, 0};
  }
  pdl_wait();  // whoever waits for this kernel waits for the pieces, too
  if (parts[0].record < 0) return;  // nor in a group within another
  const decode_attention::Params& p = params.attention;
  const int units = p.head_dim / 4, kv_head = blockIdx.y;
  const int64_t query = query_at(params, blockIdx.x);
  for (int i = threadIdx.x; i < p.group * units; i += kMergeThreads) {
    const int64_t head = (query * p.kv_heads + kv_head) * p.group + i / units;
    uint2* const out = static_cast<uint2*>(p.out) + head * units + i % units;
    const float4 own = unpack(T{}, *out);
    const float2 about = reinterpret_cast<const float2*>(joining.about)[head];
    const float weight = about.y;
    Sum sum{about.x,
            weight,
            {own.x * weight, own.y * weight, own.z * weight, own.w * weight}};
#pragma unroll
    for (int level = 0; level < shared_prefix::kMaxLevels; ++level) {
      const Part& part = parts[level];
      if (part.record < 0) continue;
      add_pieces(params, part.record, part.pieces, kv_head,
                 part.token * p.group + i / units, i % units, sum);
    }
    *out = pack(T{}, sum.values, sum.total > 0.0f ? 1.0f / sum.total : 0.0f);
  }
}

}  // namespace fdjax::prefill_attention

// The end of an item: what its rows have found goes to the result, to a record, or to a
// state.
#pragma once

#include "prefill_attention/softmax.cuh"

namespace fdjax::prefill_attention {

// Among four neighbouring lanes, v[j] becomes lane j's v[lane].
__device__ inline void transpose(uint32_t (&v)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = distance == 1 ? 2 * i : i, high = low + distance;
      const uint32_t got = __shfl_xor_sync(~0u, upper ? v[low] : v[high], distance);
      if (upper) {
        v[low] = got;
      } else {
        v[high] = got;
      }
    }
  }
}

// Weighted values over the sum of the weights; `first` is the warp's first row. Four
// lanes have 16 bytes of a row: they trade, so that each writes 16 bytes.
template <typename G>
__device__ void store(const Params& params, const Work& work, int first,
                      const Rows<G>& rows) {
  using T = typename G::T;
  const decode_attention::Params& p = params.attention;
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const float total = row_sum(rows.total[row]);
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    const RowPlace place(p, first + row * 8 + lane / 4);
    T* out = static_cast<T*>(p.out) + place.offset(p, work);
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; d += 4) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &rows.out[row / 2][d + i][row % 2 * 2];
        v[i] = packed(T{}, pair[0] * factor, pair[1] * factor);
      }
      transpose(v);
      const int chunk = d + lane % 4;
      if (place.token < work.tokens && chunk < p.head_dim / 8) {
        reinterpret_cast<uint4*>(out)[chunk] = make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
  }
}

// Where a tile's piece leaves its sums, from row `row` on, and what they are relative
// to.
struct Record {
  float* sums;
  float2* about;

  __device__ Record(const Params& p, int record, int kv_head, int row) {
    const decode_attention::Params& a = p.attention;
    const int64_t rows = (int64_t{record} * a.kv_heads + kv_head) * kTileRows + row;
    const int64_t all = int64_t{p.num_records} * a.kv_heads * kTileRows;
    sums = p.records + rows * a.head_dim;
    about = reinterpret_cast<float2*>(p.records + all * a.head_dim) + rows;
  }
};

// What the rows have of a piece of their keys; `first` is the warp's first row.
template <typename G>
__device__ void store_piece(const Params& p, const Work& work, int first,
                            const Rows<G>& rows) {
  const int lane = threadIdx.x % kLanes, column = lane % 4 * 2;
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const float total = row_sum(rows.total[row]);
    const int place = first + row * 8 + lane / 4;
    const Record record(p, work.record, work.kv_head, place);
    if (RowPlace(p.attention, place).token >= work.tokens) continue;
    if (lane % 4 == 0) *record.about = {rows.highest[row], total};
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; ++d) {
      if (d * 8 >= p.attention.head_dim) continue;
      const float* pair = &rows.out[row / 2][d][row % 2 * 2];
      *reinterpret_cast<float2*>(record.sums + d * 8 + column) = {pair[0], pair[1]};
    }
  }
}

// The natural logarithm of what weights and their base, in units of log 2, stand for.
__device__ inline float log_sum_of(float base, float total) {
  constexpr float kLn2 = 0.693147181f;
  return total > 0.0f ? kLn2 * (base + log2f(total)) : -INFINITY;
}

// Weighted values over the sum of the weights, and its logarithm; `first` is the warp's
// first row.
template <typename G>
__device__ void store_state(const Params& params, const Work& work, int first,
                            const Rows<G>& rows) {
  const decode_attention::Params& p = params.attention;
  const int lane = threadIdx.x % kLanes, column = lane % 4 * 2;
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const float total = row_sum(rows.total[row]);
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    const RowPlace place(p, first + row * 8 + lane / 4);
    if (place.token >= work.tokens) continue;
    const int64_t offset = place.offset(p, work);
    float* const out = params.states.outputs + offset;
    if (lane % 4 == 0) {
      params.states.log_sums[offset / p.head_dim] =
          log_sum_of(rows.highest[row], total);
    }
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; ++d) {
      if (d * 8 >= p.head_dim) continue;
      const float* pair = &rows.out[row / 2][d][row % 2 * 2];
      *reinterpret_cast<float2*>(out + d * 8 + column) = {pair[0] * factor,
                                                          pair[1] * factor};
    }
  }
}

template <typename G>
__device__ void finish(const Params& p, const Work& work, int first,
                       const Rows<G>& rows) {
  if (work.record >= 0) {
    store_piece<G>(p, work, first, rows);
  } else if constexpr (G::kLeavesStates) {
    store_state<G>(p, work, first, rows);
  } else {
    store<G>(p, work, first, rows);
  }
}

}  // namespace fdjax::prefill_attention

// Attention of many new tokens a sequence over its pages, whatever its pages hold
// before them: FlashAttention-2's loop, with the running maximum.
//
//   tiles.cuh   which queries, and their keys and values from pages to shared memory
//   attend.cuh  scores, weights, weighted values
//
// It is for prompts that go on after a cached prefix or an earlier chunk, and for calls
// that hold prompts of many lengths without padding between them. Products are those of
// sm_80 (mma.sync), which reach some 60 % of what wgmma does on an H200.
#pragma once

#include "prefill_attention/attend.cuh"

namespace fdjax::prefill_attention {

// Weighted values over the sum of the weights, through the warp's own rows of
// `queries`, so that a row leaves as whole lines.
template <typename G>
__device__ void store(const decode_attention::Params& p, const Tile& tile, int kv_head,
                      const Rows<G>& rows, uint32_t queries) {
  using T = typename G::T;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  __syncwarp();  // other lanes have read the queries that this one overwrites
#pragma unroll
  for (int row = 0; row < Rows<G>::kCount; ++row) {
    const float total = row_sum(rows.total[row]);
    const float factor = total > 0.0f ? 1.0f / total : 0.0f;
    const uint32_t at = queries + lane % 4 * 4;
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; ++d) {
      const float* pair = &rows.out[row / 2][d][row % 2 * 2];
      const uint32_t value = packed(T{}, pair[0] * factor, pair[1] * factor);
      asm volatile(
          "st.shared.b32 [%0], %1;" ::"r"(at + swizzled<G>(row * 8 + lane / 4, d)),
          "r"(value)
          : "memory");
    }
  }
  __syncwarp();
  const int chunk = Lanes<G>::chunk();
  if (chunk >= p.head_dim / 8) return;
#pragma unroll 4
  for (int i = Lanes<G>::row(); i < G::kWarpRows; i += Lanes<G>::kRows) {
    const RowPlace place(p, warp * G::kWarpRows + i);
    if (place.token >= tile.tokens) continue;
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(queries + swizzled<G>(i, chunk)));
    T* out = static_cast<T*>(p.out) + place.offset(p, tile, kv_head) + chunk * 8;
    *reinterpret_cast<uint4*>(out) = value;
  }
}

// Grid: tiles of queries, key/value heads. Blocks past the last tile do nothing.
template <typename G>
__global__ void __launch_bounds__(G::kThreads, G::kHeadDim <= 128 ? 2 : 1)
    kernel(FDJAX_GRID_CONSTANT const Params params) {
  extern __shared__ __align__(512) char shared[];
  __shared__ Query descriptions[kTileRows];
  const decode_attention::Params& p = params.attention;
  const int kv_head = blockIdx.y;
  Tile tile;
  if (!locate(params, blockIdx.x, &tile)) return;

  const uint32_t queries = shared_address(shared);
  const uint32_t stages = queries + G::kQueryBytes;
  const int warp_row = threadIdx.x / kLanes * G::kWarpRows;
  const uint32_t own = queries + warp_row * G::kRowBytes;
  const Query* described = descriptions + warp_row;
  Loader<G> loader(p, tile, kv_head);
  load_queries<G>(p, tile, kv_head, queries);
  loader.fetch(stages);
  commit_copies();
  describe(p, tile, kv_head, descriptions);
  __syncthreads();
  Rows<G> rows(described);

  const bool plain = p.soft_cap == 0.0f && p.slopes == nullptr;
  const int begin = tile.key_begin / G::kTileKeys * G::kTileKeys;
  int stage = 0;
  for (int first = begin; first < tile.end; first += G::kTileKeys, stage ^= 1) {
    const uint32_t keys = stages + stage * G::kStageBytes;
    wait_copies<0>();
    __syncthreads();  // these keys are there, and the other buffer has been read
    if (first + G::kTileKeys < tile.end) {
      loader.fetch(stages + (stage ^ 1) * G::kStageBytes);
      commit_copies();
    }
    float scores[G::kRowTiles][G::kKeyTiles][4];
    multiply_keys<G>(own, keys, scores);
    if (!plain) transform<G>(p, described, first, scores);
    // Every query sees all of the keys, or not.
    const bool whole =
        first + G::kTileKeys <= tile.position + 1 && first > tile.end - 1 - p.window;
    if (!whole) mask<G>(described, first, p.window, scores);
    weigh<G>(plain ? p.scale : 1.0f, rows, scores);
    multiply_values<G>(keys + G::kHalfBytes, scores, rows);
  }
  store<G>(p, tile, kv_head, rows, own);
}

}  // namespace fdjax::prefill_attention

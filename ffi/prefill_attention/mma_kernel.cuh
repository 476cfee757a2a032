// Attention of many new tokens a sequence, with the MMAs that every GPU since sm_80
// has (mma.sync): FlashAttention-2's loop.
//
// Queries are the rows of both GEMMs:
//     scores[16, 8 keys]  = queries[16, D] * keys^T[D, 8]
//     out[16, 8 dimensions] += weights[16, 16 keys] * values[16 keys, 8]
// What a thread holds of the scores is what the second GEMM wants of the weights.
//
// All threads load and multiply; keys and values come 64 (or 32) at a time into two
// buffers: one is read while the other fills.
#pragma once

#include "fdjax/mbarrier.cuh"
#include "prefill_attention/finish.cuh"
#include "prefill_attention/load.cuh"

namespace fdjax::prefill_attention {

// `kHeadDimension`: the largest size of a head; smaller ones are padded with zeros.
template <typename Element, int kHeadDimension, bool kIsOfStates>
struct MmaGeometry {
  using T = Element;
  static constexpr bool kLeavesStates = kIsOfStates;
  static constexpr int kHeadDim = kHeadDimension;
  // Each key that a warp reads from shared memory serves all of its rows; with 16 rows
  // those reads, and not the MMAs, would be the bound. Heads of 256 leave registers
  // for no more.
  static constexpr int kWarpRows = kHeadDim <= 128 ? 32 : 16;
  static constexpr int kLoaders = kTileRows / kWarpRows;  // all warps
  static constexpr int kThreads = kLoaders * kLanes;
  static constexpr int kTileKeys = kHeadDim <= 128 ? 64 : 32;
  static constexpr int kRowTiles = kWarpRows / 16;  // of a warp's MMAs
  static constexpr int kKeyTiles = kTileKeys / 8;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kQueryBytes = kTileRows * kRowBytes;
  static constexpr int kHalfBytes = kTileKeys * kRowBytes;  // keys or values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;

  // Chunks trade places with those of index XOR row % 8, as in decode_attention.
  template <int kRows>
  __device__ static uint32_t at(int row, int chunk) {
    return row * kRowBytes + (chunk ^ row % 8) * 16;
  }
};

// `queries` is of the warp's first row.
template <typename G>
__device__ void multiply_keys(uint32_t queries, uint32_t keys, Scores<G>& scores) {
  const int lane = threadIdx.x % kLanes;
  // The next chunks are one XOR away: rows lie at powers of two.
  queries += G::template at<kTileRows>(lane % 16, lane / 16);
  keys += G::template at<G::kTileKeys>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int m = 0; m < G::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0f;
#pragma unroll 4  // all 8 of them spill 40 bytes
  for (int k = 0; k < G::kHeadDim / 16; ++k) {
    uint32_t a[G::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < G::kRowTiles; ++m) {
      load_matrices(a[m], (queries ^ k * 32) + m * 16 * G::kRowBytes);
    }
#pragma unroll
    for (int n = 0; n < G::kKeyTiles; n += 2) {
      uint32_t b[4];
      load_matrices(b, (keys ^ k * 32) + n * 8 * G::kRowBytes);
#pragma unroll
      for (int m = 0; m < G::kRowTiles; ++m) {
        multiply<typename G::T>(scores[m][n], a[m], b[0], b[1]);
        multiply<typename G::T>(scores[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <typename G>
__device__ void multiply_values(uint32_t values, const Scores<G>& weights,
                                Rows<G>& rows) {
  const int lane = threadIdx.x % kLanes;
  values += G::template at<G::kTileKeys>(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < G::kTileKeys / 16; ++k) {
    uint32_t a[G::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < G::kRowTiles; ++m) pack<G>(weights, m, k, a[m]);
#pragma unroll
    for (int d = 0; d < G::kHeadDim / 8; d += 2) {
      uint32_t b[4];
      load_transposed(b, (values ^ d * 16) + k * 16 * G::kRowBytes);
#pragma unroll
      for (int m = 0; m < G::kRowTiles; ++m) {
        multiply<typename G::T>(rows.out[m][d], a[m], b[0], b[1]);
        multiply<typename G::T>(rows.out[m][d + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Grid: an item of work each. Blocks past the last do nothing.
template <typename G>
__global__ void __launch_bounds__(G::kThreads, G::kHeadDim <= 128 ? 2 : 1)
    mma_kernel(FDJAX_GRID_CONSTANT const Params params) {
  extern __shared__ __align__(512) char shared[];
  __shared__ Query descriptions[kTileRows];
  const decode_attention::Params& p = params.attention;
  const Work work = work_of(params, blockIdx.x);
  if (work.tokens == 0) return;

  const uint32_t queries = shared_address(shared);
  const uint32_t stages = queries + G::kQueryBytes;
  const int warp_row = threadIdx.x / kLanes * G::kWarpRows;
  const uint32_t own = queries + warp_row * G::kRowBytes;
  const Query* described = descriptions + warp_row;
  Loader<G> keys_loader(p, work, kKeys), values_loader(p, work, kValues);
  const auto fetch = [&](uint32_t stage) {
    keys_loader.fetch(stage);
    values_loader.fetch(stage + G::kHalfBytes);
    commit_copies();
  };
  load_queries<G>(params, work, queries);
  fetch(stages);
  for (int row = threadIdx.x; row < kTileRows; row += G::kThreads) {
    descriptions[row] = describe(p, work, row);
  }
  __syncthreads();
  Rows<G> rows(described);

  const int begin = work.key_begin / G::kTileKeys * G::kTileKeys;
  int stage = 0;
  for (int first = begin; first < work.key_end; first += G::kTileKeys, stage ^= 1) {
    const uint32_t keys = stages + stage * G::kStageBytes;
    wait_copies<0>();
    __syncthreads();  // these keys are there, and the other buffer has been read
    if (first + G::kTileKeys < work.key_end)
      fetch(stages + (stage ^ 1) * G::kStageBytes);
    Scores<G> scores;
    multiply_keys<G>(own, keys, scores);
    const float scale =
        finish_scores<G>(params, work, described, warp_row, first, scores);
    const Factors<G> factors = weigh<G>(scale, rows, scores);
    rescale(factors, rows);
    multiply_values<G>(keys + G::kHalfBytes, scores, rows);
  }
  finish<G>(params, work, warp_row, rows);
}

}  // namespace fdjax::prefill_attention

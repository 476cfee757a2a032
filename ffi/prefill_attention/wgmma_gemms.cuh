// Hopper's kernel: the two GEMMs of a warpgroup and a tile of keys.
#pragma once

#include <cstdint>

#include "fdjax/wgmma.cuh"
#include "prefill_attention/softmax.cuh"
#include "prefill_attention/wgmma_ring.cuh"

namespace fdjax::prefill_attention {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

inline constexpr int kGroupRows = kTileRows / kConsumers;

template <typename G>
using Weights = uint32_t[G::kTileKeys / 16][4];

template <typename G>
__device__ float (&flat(Scores<G>& scores))
    [G::kTileKeys / 2] { return reinterpret_cast<float (&)[G::kTileKeys / 2]>(scores); }

template <typename G>
__device__ float (&out_of(Rows<G>& rows))
    [G::kHeadDim / 2] { return reinterpret_cast<float (&)[G::kHeadDim / 2]>(rows.out); }

template <typename G>
__device__ void pack_all(const Scores<G>& scores, Weights<G>& weights) {
#pragma unroll
  for (int k = 0; k < G::kTileKeys / 16; ++k) pack<G>(scores, 0, k, weights[k]);
}

// Scores of the keys in shared memory; `queries`: wgmma's matrix of the warpgroup's
// own. Begins a group; so does multiply_values.
template <typename G>
__device__ void multiply_keys(uint64_t queries, uint32_t keys, Scores<G>& scores) {
  using Gemm = Wgmma<typename G::T, G::kTileKeys>;
  const uint64_t b = wgmma_matrix(keys);
  auto& d = flat<G>(scores);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < G::kHeadDim / 16; ++k) {
    const int step = k % 4 * kWgmmaStepK;
    const uint64_t own = queries + k / 4 * (kTileRows * kLineBytes >> 4) + step;
    const uint64_t other = b + k / 4 * (G::kTileKeys * kLineBytes >> 4) + step;
    if (k == 0) {
      Gemm::set(d, own, other);
    } else {
      Gemm::add(d, own, other);
    }
  }
  wgmma_commit();
}

// Adds weighted values.
template <typename G>
__device__ void multiply_values(const Weights<G>& weights, uint32_t values,
                                Rows<G>& rows) {
  constexpr int kBox = G::kTileKeys * kLineBytes;
  constexpr int kColumns = G::kHeadDim < 128 ? G::kHeadDim : 128;  // at a time
  wgmma_pin(out_of<G>(rows));
  wgmma_fence();
#pragma unroll
  for (int column = 0; column < G::kHeadDim; column += kColumns) {
    auto& d = reinterpret_cast<float (&)[kColumns / 2]>(rows.out[0][column / 8]);
    const uint64_t b = wgmma_rows(values + column / 64 * kBox, kBox);
#pragma unroll
    for (int k = 0; k < G::kTileKeys / 16; ++k) {
      Wgmma<typename G::T, kColumns>::add_rows(d, weights[k],
                                               b + k * (16 * kLineBytes >> 4));
    }
  }
  wgmma_commit();
}

#endif

}  // namespace fdjax::prefill_attention

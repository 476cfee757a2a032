// The launches of the kernels, whatever they are compiled for.
#pragma once

#include <algorithm>
#include <type_traits>

#include "fdjax/launch.h"
#include "fdjax/tensor_map.h"
#include "prefill_attention/launch.h"
#include "prefill_attention/merge.cuh"
#include "prefill_attention/mma_kernel.cuh"
#include "prefill_attention/wgmma_kernel.cuh"

namespace fdjax::prefill_attention {

// As many as there can be, of `blocks` tiles each: how many there are is known to the
// device alone.
inline int most_items(const Params& p, int blocks = 1) {
  return blocks_for(p.num_tiles, blocks) * p.attention.kv_heads;
}

template <typename G>
cudaError_t launch_mma(cudaStream_t stream, const Params& p) {
  const fdjax::Launch how{.stream = stream,
                          .grid = dim3(most_items(p)),
                          .threads = G::kThreads,
                          .shared_bytes = G::kSharedBytes};
  return fdjax::launch(how, mma_kernel<G>, p);
}

// What TMA must know; false where it cannot fetch tiles.
template <typename G>
bool encode_sources(const Params& p, Sources* sources) {
  const decode_attention::Params& a = p.attention;
  const uint32_t box = std::min(a.page_size, uint32_t{G::kTileKeys});
  if (a.head_dim != G::kHeadDim || box % 8 != 0 || G::kTileKeys % box != 0)
    return false;
  if (a.page_size % box != 0 || a.num_pages == 0) return false;
  if (a.head_bytes % kLineBytes != 0 || a.value_bytes % kLineBytes != 0) return false;
  constexpr bool kBfloat16 = std::is_same_v<typename G::T, GpuFloats::bfloat16>;
  const uint64_t heads = uint64_t{1} * a.kv_heads * a.group;
  const uint64_t tokens = p.queries;
  const uint64_t lines = static_cast<uint64_t>(a.slot_bytes) / kLineBytes;
  const uint64_t slots = paged::slots_of(a);
  const uint32_t group = a.group;
  const BoxSource<4> queries{
      .data = a.q,
      .sizes = {kLineElements, heads, tokens, G::kLines},
      .strides = {G::kHeadDim * 2, heads * G::kHeadDim * 2, kLineBytes},
      .box = {kLineElements, group, G::kShared ? 1 : kTileRows / group, 1}};
  const BoxSource<3> kv{.data = a.kv,
                        .sizes = {kLineElements, slots, lines},
                        .strides = {static_cast<uint64_t>(a.slot_bytes), kLineBytes},
                        .box = {kLineElements, box, 1}};
  return encode_tensor_map(queries, kBfloat16, &sources->queries) &&
         encode_tensor_map(kv, kBfloat16, &sources->slots);
}

// Prefixes are read while rows' own attention is under way, which is launched before
// them and starts when all before it has ended: what is read here nobody writes then,
// and the records that are written nobody reads.
template <typename G>
cudaError_t launch_wgmma(cudaStream_t stream, const Params& p, const Sources& sources) {
  int device, sms;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const fdjax::Launch how{
      .stream = stream,
      .grid = dim3(std::min(most_items(p, G::kBlocks), sms / G::kBlocks) * G::kBlocks),
      .threads = G::kThreads,
      .shared_bytes = G::kSharedBytes,
      .cluster = G::kBlocks,
      .programmatic = G::kShared};
  return fdjax::launch(how, wgmma_kernel<G>, p, sources);
}

inline bool takes_pairs(const Params& p) { return p.attention.group >= kPairGroup; }

// Prompts of heads of 128, the usual ones, have a kernel for pairs, too.
template <typename T, int kHeadDim, Use kUse>
cudaError_t launch_best_wgmma(cudaStream_t stream, const Params& p,
                              const Sources& sources) {
  constexpr bool kPrompts = kUse == Use::kSynchronised || kUse == Use::kUnified;
  if constexpr (kPrompts && kHeadDim == 128) {
    if (takes_pairs(p)) {
      using G = WgmmaGeometry<T, kHeadDim, kUse, /*kPairs=*/true>;
      return launch_wgmma<G>(stream, p, sources);
    }
  }
  return launch_wgmma<WgmmaGeometry<T, kHeadDim, kUse>>(stream, p, sources);
}

// Whether the device's code has the kernel: one without a body has no shared memory.
template <typename G>
bool has_wgmma() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, wgmma_kernel<G>) == cudaSuccess &&
         attributes.sharedSizeBytes > 0;
}

// A kernel that may start before the last one ends, where the device has such.
template <typename T, Use kUse>
fdjax::Launch launch_after(cudaStream_t stream, dim3 grid) {
  return {.stream = stream,
          .grid = grid,
          .threads = kMergeThreads,
          .programmatic = has_wgmma<WgmmaGeometry<T, 64, kUse>>()};
}

template <typename T, Use kUse>
cudaError_t launch_merge(cudaStream_t stream, const Params& p) {
  if (p.num_records == 0) return cudaSuccess;
  const dim3 grid(p.num_tiles, p.attention.kv_heads, kTileRows / kMergeRows);
  return fdjax::launch(launch_after<T, kUse>(stream, grid), merge_kernel<T, kUse>, p);
}

// Calls `launch` with the size of the head's kernel, which may be larger.
template <typename Launch>
cudaError_t of_size(int head_dim, const Launch& launch) {
  if (head_dim <= 64) return launch(std::integral_constant<int, 64>{});
  if (head_dim <= 128) return launch(std::integral_constant<int, 128>{});
  return launch(std::integral_constant<int, 256>{});
}

template <typename T, int kHeadDim, Use kUse>
cudaError_t launch_attention(cudaStream_t stream, const Params& p) {
  using G = WgmmaGeometry<T, kHeadDim, kUse>;
  Sources sources;
  return has_wgmma<G>() && encode_sources<G>(p, &sources)
             ? launch_best_wgmma<T, kHeadDim, kUse>(stream, p, sources)
             : launch_mma<MmaGeometry<T, kHeadDim, kUse == Use::kStates>>(stream, p);
}

inline Params in_units_of_log2(Params p) {
  p.attention = decode_attention::in_units_of_log2(p.attention);
  return p;
}

}  // namespace fdjax::prefill_attention

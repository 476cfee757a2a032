// The launch: units, shared memory, grid, cluster, and the choice of the kernel.
//
// Included by bfloat16.cu and float16.cu alone: their kernels take long to compile.
#pragma once

#include <algorithm>
#include <type_traits>

#include "decode_attention/kernel.cuh"
#include "decode_attention/launch.h"
#include "fdjax/launch.h"
#include "fdjax/tensor_map.h"

namespace fdjax::decode_attention {

// Whether what runs here was compiled for clusters (and TMA). Not whether the device
// has them: a newer one than was compiled for runs the PTX of an older one, which has
// not.
template <typename... Args>
bool has_clusters(void (*kernel)(Args...)) {
  cudaFuncAttributes compiled;
  return cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess &&
         compiled.ptxVersion >= 90;
}

// What TMA, where there is one, must know of the KV array to fetch boxes of `tokens`
// neighbouring slots and `lines` of a head; false where it cannot.
template <typename G>
bool encode_source(const Params& p, cuuint32_t tokens, cuuint32_t lines,
                   CUtensorMap* source) {
  if (p.num_pages == 0) return false;
  if (p.head_bytes % kLineBytes != 0 || p.value_bytes % kLineBytes != 0) return false;
  const uint64_t slot_lines = static_cast<uint64_t>(p.slot_bytes) / kLineBytes;
  const BoxSource<3> kv{.data = p.kv,
                        .sizes = {kLineElements, slots_of(p), slot_lines},
                        .strides = {static_cast<uint64_t>(p.slot_bytes), kLineBytes},
                        .box = {kLineElements, tokens, lines}};
  constexpr bool kBfloat16 = std::is_same_v<typename G::T, GpuFloats::bfloat16>;
  return encode_tensor_map(kv, kBfloat16, source);
}

// `warps`: of a block. Without clusters a block does all of an item: right, and slow at
// small batches.
template <typename G>
fdjax::Launch launch_of(cudaStream_t stream, const Params& p,
                        const LaunchConfig& config, int warps, int splits) {
  using Sums = Exchange<G>;
  const int heads = config.heads;
  const int exchange_bytes = Sums::bytes(warps, heads, p.group, splits);
  return {.stream = stream,
          .grid = dim3(splits, config.slots),
          .threads = warps * kLanes,
          .shared_bytes = heads * (G::kQueryBytes + G::kNewestBytes) +
                          Sums::inbox_bytes(heads, p.group, splits) + kRingAlignment +
                          std::max(warps * G::kRingBytes, exchange_bytes),
          .cluster = splits,
          .programmatic = config.programmatic};
}

template <typename G>
cudaError_t launch_geometry(cudaStream_t stream, const Params& p,
                            const LaunchConfig& config) {
  using Sums = Exchange<G>;
  const bool is_hopper = has_clusters(kernel<G>);
  const int splits = is_hopper ? config.splits : 1, heads = config.heads;
  Params all = in_units_of_log2(p);
  all.block = {.heads = heads,
               .inbox_bytes = Sums::inbox_bytes(heads, p.group, splits),
               .slots = config.slots,
               .items_at = attention_plan::items_at(p.rows, p.kv_heads),
               .splits = Divisor(splits),
               .group = Divisor(p.group),
               .share = Divisor(Sums::share_of(heads, p.group, splits))};
  const auto launched = [&](auto kernel, int max_warps, const auto&... source) {
    const int warps = std::min(config.warps, max_warps);
    return fdjax::launch(launch_of<G>(stream, p, config, warps, splits), kernel, all,
                         source...);
  };
  if constexpr (G::kHeadDim % kLineElements == 0) {
    CUtensorMap pages;
    if (is_hopper && p.page_size % kTileTokens == 0 &&
        encode_source<G>(p, kTileTokens, G::kLines, &pages)) {
      return launched(tma_kernel<G>, G::kMaxWarps, pages);
    }
    SlotSource slots;
    if (is_hopper && config.in_runs && p.page_size == 1 && p.slots_per_page == 1 &&
        encode_source<G>(p, kTileTokens, G::kLines, &slots.tile) &&
        encode_source<G>(p, 1, 1, &slots.line)) {
      return launched(slot_kernel<G>, G::kMaxWarps, slots);
    }
  }
  return launched(kernel<G>, kMaxCopyingWarps);
}

// Groups of more than 8 heads have sizes 64 and 128: no model has others, and each of
// these kernels takes 3 to 5 s to compile.
template <typename T>
cudaError_t dispatch_small_group(cudaStream_t stream, const Params& p,
                                 const LaunchConfig& config) {
  switch (p.head_dim) {
    case 64:
      return launch_geometry<Geometry<T, 64, 8>>(stream, p, config);
    case 80:
      return launch_geometry<Geometry<T, 80, 8>>(stream, p, config);
    case 96:
      return launch_geometry<Geometry<T, 96, 8>>(stream, p, config);
    case 128:
      return launch_geometry<Geometry<T, 128, 8>>(stream, p, config);
    case 256:
      return launch_geometry<Geometry<T, 256, 8>>(stream, p, config);
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename T>
cudaError_t dispatch_large_group(cudaStream_t stream, const Params& p,
                                 const LaunchConfig& config) {
  switch (p.head_dim) {
    case 64:
      return launch_geometry<Geometry<T, 64, 16>>(stream, p, config);
    case 128:
      return launch_geometry<Geometry<T, 128, 16>>(stream, p, config);
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename T>
cudaError_t launch_decode_attention(cudaStream_t stream, const Params& p,
                                    const LaunchConfig& config) {
  return p.group <= kMaxGroup ? dispatch_small_group<T>(stream, p, config)
                              : dispatch_large_group<T>(stream, p, config);
}

}  // namespace fdjax::decode_attention

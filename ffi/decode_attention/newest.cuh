// RoPE and the writing of keys and values as the first thing that attention does.
//
// In the chain of decoder_stack the product's q, k and v would need a kernel between
// the product and attention: 3 to 4 us a layer. But each query head is read by the
// blocks of its group alone, and a row's newest key and value by one of them.
#pragma once

#include "decode_attention/tiles.cuh"
#include "rope_kv_write/rotate.cuh"

namespace fdjax::decode_attention {

// Two chunks of a head that RoPE mixes, or two that it leaves alone.
struct ChunkPair {
  int first, second;
  int frequency;  // of the first element; negative: not rotated
};

__device__ inline ChunkPair pair_of(const Newest& n, int unit, bool rotates) {
  const int turned = n.num_frequencies / 8;
  const bool rotated = rotates && unit < turned;
  if (rotated && !n.interleaved) return {unit, turned + unit, unit * 8};
  return {2 * unit, 2 * unit + 1, rotated ? unit * 8 : -1};
}

// Head `head` of the product's row.
template <typename G>
__device__ const Vec<typename G::T, 8>* head_of(const Params& p, int row, int head) {
  const int64_t heads = p.kv_heads * (p.group + 2);
  return static_cast<const Vec<typename G::T, 8>*>(p.newest.qkv) +
         (row * heads + head) * G::kChunks;
}

template <typename V>
__device__ void turn(const Newest& n, int row, const ChunkPair& pair, V& first,
                     V& second) {
  if (pair.frequency < 0) return;
  const int64_t at = int64_t{row} * n.num_frequencies + pair.frequency;
  const auto* cosines = reinterpret_cast<const float4*>(n.cosines + at);
  const auto* sines = reinterpret_cast<const float4*>(n.sines + at);
  const float4 c[2] = {cosines[0], cosines[1]}, s[2] = {sines[0], sines[1]};
  rope_kv_write::rotate(first, second, &c[0].x, &s[0].x, n.interleaved);
}

// `load_queries` of the product's queries.
template <typename G>
__device__ void load_turned_queries(const Params& p, const Block& block,
                                    char* queries) {
  using V = Vec<typename G::T, 8>;
  constexpr int kUnits = G::kChunks / 2;
  const int units = block.heads * G::kColumns * kUnits;
  for (int i = threadIdx.x; i < units; i += blockDim.x) {
    const int row = i / kUnits;
    const int head = row / G::kColumns, column = row % G::kColumns;
    const ChunkPair pair = pair_of(p.newest, i % kUnits, /*rotates=*/true);
    V first{}, second{};
    if (column < p.group) {
      const V* source =
          head_of<G>(p, block.row, (block.kv_head + head) * p.group + column);
      first = source[pair.first];
      second = source[pair.second];
      turn(p.newest, block.row, pair, first, second);
    }
    *reinterpret_cast<V*>(queries + swizzled<G>(row, pair.first)) = first;
    *reinterpret_cast<V*>(queries + swizzled<G>(row, pair.second)) = second;
  }
}

// The newest key and value of the block's heads into their slot: by the block that
// reads them, the row's last split.
template <typename G>
__device__ void write_newest(const Params& p, const Block& block) {
  using V = Vec<typename G::T, 8>;
  constexpr int kUnits = G::kChunks / 2;
  const Newest& n = p.newest;
  const int slot = n.slots[block.row];
  const int64_t slots = int64_t{p.num_pages} * p.page_size;
  if (block.split != block.splits - 1 || slot < 0 || slot >= slots) return;
  const uint32_t page = slot / p.page_size;
  const int64_t keys = int64_t{page} * p.slots_per_page + slot % p.page_size;
  for (int i = threadIdx.x; i < 2 * block.heads * kUnits; i += blockDim.x) {
    const bool is_value = i >= block.heads * kUnits;
    const int head = block.kv_head + i / kUnits % block.heads;
    const ChunkPair pair = pair_of(n, i % kUnits, !is_value);
    const V* source =
        head_of<G>(p, block.row, (p.group + is_value) * p.kv_heads + head);
    V first = source[pair.first], second = source[pair.second];
    turn(n, block.row, pair, first, second);
    V* target = reinterpret_cast<V*>(static_cast<char*>(n.kv) +
                                     (keys + is_value * p.page_size) * p.slot_bytes) +
                head * G::kChunks;
    target[pair.first] = first;
    target[pair.second] = second;
  }
}

}  // namespace fdjax::decode_attention

// RoPE and the writing of keys and values as the first thing that attention does.
//
// In the chain of decoder_stack the product's q, k and v would need a kernel between
// the product and attention: 3 to 4 us a layer. But each query head is read by the
// blocks of its group alone, and a row's newest key and value by one of them. That
// block need not wait for its own writing: it copies the tile that has the newest slot
// with the others, and puts the newest key and value over what came.
#pragma once

#include "decode_attention/slots.cuh"
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

// Where the newest key and value of a row go: into the pages for later steps, and into
// shared memory for this one, whose copy of that slot was on its way before they
// existed.
template <typename G>
struct NewestSlot {
  char* kept;    // [heads, 2, kRowBytes]: key, value
  int64_t slot;  // of the key in `kv`, counted as Params::slots_per_page; or kAbsent

  __device__ NewestSlot(const Params& p, const Block& block, char* memory)
      : kept(memory), slot(kAbsent) {
    // The slot is read by who has the last tokens, and by no one else.
    if (p.newest.qkv == nullptr || block.run(p) < block.runs(p) - 1) return;
    const int at = p.newest.slots[block.row];
    const int64_t slots = int64_t{p.num_pages} * p.page_size;
    if (at < 0 || at >= slots) return;
    const uint32_t page = static_cast<uint32_t>(at) / p.page_size;
    slot = int64_t{page} * p.slots_per_page + at % p.page_size;
  }

  __device__ bool is_written() const { return slot != kAbsent; }
  // Of one of the block's heads.
  __device__ const char* key(int head) const { return kept + head * G::kNewestBytes; }
};

// Two chunks of a query, turned, in their places for the products.
template <typename G>
__device__ void turn_query(const Params& p, const Block& block, int index,
                           char* queries) {
  using V = Vec<typename G::T, 8>;
  constexpr int kUnits = G::kChunks / 2;
  const int row = index / kUnits;
  const int head = row / G::kColumns, column = row % G::kColumns;
  const ChunkPair pair = pair_of(p.newest, index % kUnits, /*rotates=*/true);
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

// Two chunks of a newest key, turned, or of a newest value.
template <typename G>
__device__ void turn_newest(const Params& p, const Block& block,
                            const NewestSlot<G>& newest, int index) {
  using V = Vec<typename G::T, 8>;
  constexpr int kUnits = G::kChunks / 2;
  const bool is_value = index / kUnits % 2;
  const int head = index / kUnits / 2;
  const ChunkPair pair = pair_of(p.newest, index % kUnits, !is_value);
  const V* source = head_of<G>(
      p, block.row, (p.group + is_value) * p.kv_heads + block.kv_head + head);
  V first = source[pair.first], second = source[pair.second];
  turn(p.newest, block.row, pair, first, second);
  V* page =
      reinterpret_cast<V*>(static_cast<char*>(p.newest.kv) +
                           (newest.slot + is_value * p.page_size) * p.slot_bytes) +
      (block.kv_head + head) * G::kChunks;
  V* kept = reinterpret_cast<V*>(newest.kept + head * G::kNewestBytes +
                                 is_value * G::kRowBytes);
  page[pair.first] = kept[pair.first] = first;
  page[pair.second] = kept[pair.second] = second;
}

// The block's queries, and the row's newest keys and values if they are its to write:
// at once, since each waits for the product's result.
template <typename G>
__device__ void turn_all(const Params& p, const Block& block,
                         const NewestSlot<G>& newest, char* queries) {
  constexpr int kUnits = G::kChunks / 2;
  const int of_queries = block.heads * G::kColumns * kUnits;
  const int of_newest = newest.is_written() ? 2 * block.heads * kUnits : 0;
  for (int i = threadIdx.x; i < of_queries + of_newest; i += blockDim.x) {
    if (i < of_queries) {
      turn_query<G>(p, block, i, queries);
    } else {
      turn_newest<G>(p, block, newest, i - of_queries);
    }
  }
}

}  // namespace fdjax::decode_attention

// RoPE and the writing of keys and values as the first thing that attention does.
//
// In the chain of layer_program, where all rows decode, q, k and v would need a kernel
// between their GEMM and attention: 3 to 4 us a layer. But each query head is read by
// the blocks of its group alone, and a row's newest key and value by one of them. That
// block need not wait for its own writing: it copies the tile that has the newest slot
// with the others, and puts the newest key and value over what came.
#pragma once

#include "decode_attention/tiles.cuh"
#include "paged/slots.cuh"
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

// Head `head` of a row of qkv.
template <typename G>
__device__ const Vec<typename G::T, 8>* head_of(const Params& p, int row, int head) {
  const int64_t heads = p.kv_heads * (p.group + 2);
  return static_cast<const Vec<typename G::T, 8>*>(p.newest.qkv) +
         (row * heads + head) * G::kChunks;
}

// The cosines and sines of a chunk pair.
class Rotation {
 public:
  __device__ void load(const Newest& n, int row, int frequency) {
    if (frequency < 0 || frequency == frequency_) return;
    frequency_ = frequency;
    const int64_t at = int64_t{row} * n.num_frequencies + frequency;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      cosines_[i] = reinterpret_cast<const float4*>(n.cosines + at)[i];
      sines_[i] = reinterpret_cast<const float4*>(n.sines + at)[i];
    }
  }

  template <typename V>
  __device__ void turn(const Newest& n, V& first, V& second) const {
    rope_kv_write::rotate(first, second, &cosines_[0].x, &sines_[0].x, n.interleaved);
  }

 private:
  int frequency_ = -1;  // whose these are
  float4 cosines_[2], sines_[2];
};

// Where the newest key and value of a row go: into the pages for later steps, and into
// shared memory for this one, whose copy of that slot was on its way before they
// existed.
template <typename G>
struct NewestSlot {
  char* kept;       // [heads, 2, kRowBytes]: key, value
  int64_t address;  // of the key in the array; or kNowhere

  __device__ NewestSlot(const Params& p, const Block& block, char* memory)
      : kept(memory), address(paged::kNowhere) {
    // The slot is read by who has the last tokens, and by no one else.
    if (p.newest.qkv == nullptr || !block.is_last()) return;
    address = paged::slot_address(p.newest.pages, p.newest.slots[block.row()]);
  }

  __device__ bool is_written() const { return address != paged::kNowhere; }
  // Of one of the block's heads.
  __device__ const char* key(int head) const { return kept + head * G::kNewestBytes; }
};

// Turns the block's queries, and the row's newest keys and values if they are its to
// write: two chunks of a head at a time. What does not wait for the GEMM's result is
// found and fetched before it: the latency of a load is as long as all else together.
template <typename G>
class Turner {
 public:
  __device__ Turner(const Params& p, const Block& block, const NewestSlot<G>& newest)
      : p_(p), block_(block), newest_(newest) {
    of_queries_ = block.heads() * p.group * kUnits;
    total_ = of_queries_ + (newest.is_written() ? 2 * block.heads() * kUnits : 0);
    find(threadIdx.x);
  }

  // Zeros for the columns that pad a group.
  __device__ void pad(char* queries) const {
    if (p_.group == G::kColumns) return;
    for (int i = threadIdx.x; i < block_.heads() * G::kColumns * G::kChunks;
         i += blockDim.x) {
      const int row = i / G::kChunks;
      if (row % G::kColumns < p_.group) continue;
      *reinterpret_cast<uint4*>(queries + row * G::kRowBytes +
                                i % G::kChunks * 16) = {};
    }
  }

  // After the GEMM.
  __device__ void run(char* queries) {
    for (int i = threadIdx.x; i < total_;) {
      V first = source_[pair_.first], second = source_[pair_.second];
      if (pair_.frequency >= 0) rotation_.turn(p_.newest, first, second);
      if (i < of_queries_) {
        keep_query(i / kUnits, queries, first, second);
      } else {
        keep_newest((i - of_queries_) / kUnits, first, second);
      }
      i += blockDim.x;
      find(i);
    }
  }

 private:
  using V = Vec<typename G::T, 8>;
  static constexpr int kUnits = G::kChunks / 2;  // of a head

  __device__ void find(int i) {
    if (i >= total_) return;
    const bool is_query = i < of_queries_;
    const int vector = (is_query ? i : i - of_queries_) / kUnits;
    const bool rotates = is_query || vector % 2 == 0;  // keys, not values
    const int head = is_query ? block_.kv_head() * p_.group + vector
                              : (p_.group + vector % 2) * p_.kv_heads +
                                    block_.kv_head() + vector / 2;
    source_ = head_of<G>(p_, block_.row(), head);
    pair_ = pair_of(p_.newest, i % kUnits, rotates);
    rotation_.load(p_.newest, block_.row(), pair_.frequency);
  }

  // In its place for the MMAs.
  __device__ void keep_query(int query, char* queries, const V& first,
                             const V& second) const {
    const int head = quotient(query, p_.block.group);
    const int row = head * G::kColumns + query - head * p_.group;
    *reinterpret_cast<V*>(queries + swizzled<G>(row, pair_.first)) = first;
    *reinterpret_cast<V*>(queries + swizzled<G>(row, pair_.second)) = second;
  }

  // `vector`: a head's key, then its value.
  __device__ void keep_newest(int vector, const V& first, const V& second) const {
    const int head = vector / 2, is_value = vector % 2;
    char* slot = static_cast<char*>(p_.newest.pages.kv) + newest_.address +
                 is_value * p_.value_offset();
    V* page =
        reinterpret_cast<V*>(slot + int64_t{p_.head_bytes} * (block_.kv_head() + head));
    V* kept = reinterpret_cast<V*>(newest_.kept + head * G::kNewestBytes +
                                   is_value * G::kRowBytes);
    page[pair_.first] = kept[pair_.first] = first;
    page[pair_.second] = kept[pair_.second] = second;
  }

  const Params& p_;
  const Block& block_;
  const NewestSlot<G>& newest_;
  int of_queries_, total_;
  const V* source_;
  ChunkPair pair_;
  Rotation rotation_;
};

}  // namespace fdjax::decode_attention

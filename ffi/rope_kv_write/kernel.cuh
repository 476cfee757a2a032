// RoPE on q and k, and k and v into their page, reading the fused QKV once.
//
// A head is cut into units of 2 * kVec elements: two 16 byte accesses, or two scalars
// where sizes or addresses do not allow those. A unit of rotated dimensions holds both
// members of kVec pairs, so no thread needs another's data. Block (t, c) takes every
// gridDim.y-th group of units of token t and shares one table of the token's angles.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
#include "fdjax/vector.cuh"
#include "rope_kv_write/params.h"
#include "rope_kv_write/rotate.cuh"

namespace fdjax::rope_kv_write {

inline constexpr int kThreads = 128;

template <typename T, int kVec>
struct Unit {
  Vec<T, kVec> first, second;
  T* target;      // where the head goes; nullptr: nowhere
  int offset;     // of `first` in the head
  int distance;   // from `first` to `second`
  int frequency;  // of the first pair; negative: not rotated
};

struct Token {
  int index;
  int64_t address;  // of its keys in the pages; kNowhere: they are not written
};

__device__ inline Token locate(const Params& p, int token) {
  return {token, paged::slot_address(p.pages, p.slots[token])};
}

// Where head `head` of q, k and v goes.
template <typename T>
__device__ T* target_of(const Params& p, Token token, int head) {
  const int64_t head_dim = p.head_dim;
  if (head < p.q_heads) {
    const int64_t row = static_cast<int64_t>(token.index) * p.q_heads + head;
    return static_cast<T*>(p.query) + row * head_dim;
  }
  if (token.address == paged::kNowhere) return nullptr;
  const int kv_head = (head - p.q_heads) % p.kv_heads;
  const bool is_value = head - p.q_heads >= p.kv_heads;
  return reinterpret_cast<T*>(static_cast<char*>(p.pages.kv) + token.address +
                              is_value * p.pages.value_offset() +
                              int64_t{p.pages.head_bytes} * kv_head);
}

template <typename T, int kVec>
__device__ Unit<T, kVec> load(const Params& p, Token token, int index) {
  using V = Vec<T, kVec>;
  const int units_per_head = p.head_dim / (2 * kVec);
  const int head = index / units_per_head, unit = index % units_per_head;
  const bool rotated = head < p.q_heads + p.kv_heads && unit * kVec < p.num_frequencies;
  const bool split = rotated && !p.interleaved;
  Unit<T, kVec> u;
  u.target = target_of<T>(p, token, head);
  u.offset = split ? unit * kVec : unit * 2 * kVec;
  u.distance = split ? p.num_frequencies : kVec;
  u.frequency = rotated ? unit * kVec : -1;
  if (u.target == nullptr) return u;
  const int64_t heads = p.q_heads + 2 * p.kv_heads;
  const T* source = static_cast<const T*>(p.qkv) +
                    (token.index * heads + head) * p.head_dim + u.offset;
  u.first = *reinterpret_cast<const V*>(source);
  u.second = *reinterpret_cast<const V*>(source + u.distance);
  return u;
}

template <typename T, int kVec>
__device__ void store(Unit<T, kVec> u, const float* cosines, const float* sines,
                      bool interleaved) {
  using V = Vec<T, kVec>;
  if (u.target == nullptr) return;
  if (u.frequency >= 0) {
    rotate(u.first, u.second, cosines + u.frequency, sines + u.frequency, interleaved);
  }
  *reinterpret_cast<V*>(u.target + u.offset) = u.first;
  *reinterpret_cast<V*>(u.target + u.offset + u.distance) = u.second;
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) kernel(FDJAX_GRID_CONSTANT const Params p) {
  alignas(16) __shared__ float cosines[kMaxFrequencies];
  alignas(16) __shared__ float sines[kMaxFrequencies];
  const Token token = locate(p, blockIdx.x);
  const int units = (p.q_heads + 2 * p.kv_heads) * (p.head_dim / (2 * kVec));
  const int stride = gridDim.y * kThreads;
  int index = blockIdx.y * kThreads + threadIdx.x;
  const float position = static_cast<float>(p.positions[token.index]);
  for (int i = threadIdx.x; i < p.num_frequencies; i += kThreads) {
    sincosf(__fmul_rn(position, p.frequencies[i]), &sines[i], &cosines[i]);
  }
  __syncthreads();
  Unit<T, kVec> unit;
  if (index < units) unit = load<T, kVec>(p, token, index);
  while (index < units) {
    store(unit, cosines, sines, p.interleaved);
    index += stride;
    if (index < units) unit = load<T, kVec>(p, token, index);
  }
}

}  // namespace fdjax::rope_kv_write

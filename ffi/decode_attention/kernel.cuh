// Attention of one new token a row over its pages, with a unified maximum.
//
// Softmax does not change when every exponent is taken relative to the same number, so
// that number may be a constant of the model, phi, instead of the row's largest score
// (FlashDecoding++Next, section III). Then partial results are plain sums
//     numerator[d] = sum_t exp(s_t - phi) v_t[d],   denominator = sum_t exp(s_t - phi)
// and tiles, warps and blocks add theirs without knowing each other's maxima: nothing
// is exchanged in the loop and nothing is rescaled.
//
// It is exact as long as float32 holds the sums. Every row's largest score m is
// watched:
// * m >= phi + high: exp could overflow. The row is recomputed.
// * m <= phi + low: the sums could underflow as a whole. The row is recomputed.
// The second test needs the LARGEST score only. A score far below the others adds
// exp(s - m) < exp(-87 - low) of the row's largest weight before its own weight is
// flushed to zero: with low >= -60 that is under 2e-12, which no 16 bit result can
// show, in this scheme or in any other. Testing each score would recompute rows for
// nothing.
//
// Recomputation is the synchronised scheme (running maximum) over the same tokens by
// the same blocks, decided together by the cluster that shares the row; rows of the
// group that were within the bounds keep the result they have.
//
//   newest.cuh         before all that, if wanted: RoPE, and the newest token's page
//   tiles.cuh          which tokens are whose, and where they lie in shared memory
//   slots.cuh          where the page table says that a token lies
//   tma_loader.cuh     pages -> shared memory by the copy engine, a ring a warp
//   thread_loader.cuh  the same by threads, for what the copy engine does not take
//   attend.cuh         scores, the two schemes, weighted values
//   combine.cuh        warps -> block -> cluster -> output
//   inbox.cuh          how the blocks of a cluster send each other sums
//   parts.cuh          several clusters for the tokens of a row
#pragma once

#include "decode_attention/combine.cuh"
#include "decode_attention/newest.cuh"
#include "decode_attention/thread_loader.cuh"
#include "decode_attention/tma_loader.cuh"
#include "fdjax/pdl.cuh"

namespace fdjax::decode_attention {

// The block's query heads, a padded group for each key/value head; zeros as padding.
template <typename G>
__device__ void load_queries(const Params& p, const Block& block, char* queries) {
  const uint4* source =
      static_cast<const uint4*>(p.q) + block.query_head(p) * G::kChunks;
  const int chunks = block.heads * G::kColumns * G::kChunks;
  for (int i = threadIdx.x; i < chunks; i += blockDim.x) {
    const int row = i / G::kChunks, chunk = i % G::kChunks;
    const int head = row / G::kColumns, column = row % G::kColumns;
    uint4 value{0, 0, 0, 0};
    if (column < p.group) {
      value = source[(head * p.group + column) * G::kChunks + chunk];
    }
    *reinterpret_cast<uint4*>(queries + swizzled<G>(row, chunk)) = value;
  }
}

// Everything between a warp's tokens and what its block has received of the cluster's
// sums. The warp's ring is filled already, and the cluster's blocks have arrived at a
// barrier when their inboxes were free. `parity`: of the inbox.
template <typename G, typename Loader>
__device__ void pass(const Params& p, const Block& block, const Work& work,
                     Scheme scheme, Loader& loader, uint32_t queries,
                     const char* newest, const Exchange<G>& exchange, uint32_t parity) {
  Partial<G> partial;
  if (scheme.unified) {
    attend<true>(p, work, loader, queries, newest, partial);
  } else {
    attend<false>(p, work, loader, queries, newest, partial);
  }
  store_partial(block, scheme, exchange, partial);
  barrier_wait();                                  // every inbox is free
  if (!exchange.is_apart(block.heads)) barrier();  // and every ring is
  __syncthreads();                                 // this block's partials stand
  if (threadIdx.x == 0) exchange.inbox.expect(exchange.expected_bytes(block));
  send(p, block, exchange);
  exchange.inbox.wait(parity, block.splits);
}

// After a pass with the unified maximum: which of the block's columns are `done`, being
// within the bounds. Returns whether any is not: the same in every block of the
// cluster.
template <typename G>
__device__ bool check(const Params& p, const Block& block, const Exchange<G>& exchange,
                      bool* done) {
  bool outside = false;
  if (const int column = threadIdx.x; column < exchange.columns) {
    const float highest = sum_all(p, block, Scheme{true}, exchange, column).highest;
    // -inf: the query sees no token, and its zeros are right.
    outside = highest >= p.high || (highest <= p.low && highest != -INFINITY);
    done[column] = !outside;
  }
  return __syncthreads_or(outside);
}

// What will be computed again; nothing if `done` is nullptr. Where several clusters
// share the row, combine_parts counts.
__device__ inline void count_recomputed(const Params& p, const Block& block,
                                        const bool* done) {
  if (const int head = threadIdx.x;
      block.split == 0 && head < block.heads && block.parts(p) == 1) {
    int count = 0;
    for (int g = 0; g < p.group && done != nullptr; ++g) {
      count += !done[head * p.group + g];
    }
    p.recomputed[int64_t{block.row} * p.kv_heads + block.kv_head + head] = count;
  }
}

// All that a block does.
template <typename G, typename Loader>
__device__ __forceinline__ void attend_to_row(const Params& p,
                                              const typename Loader::Source& source) {
  extern __shared__ __align__(512) char shared[];
  __shared__ typename Loader::Barriers barriers[G::kMaxWarps];
  __shared__ Column of_warps[G::kMaxWarps * G::kColumns];
  __shared__ bool columns_done[G::kMaxWarps * G::kColumns];
  __shared__ uint64_t full;
  const Block block(p);
  const int warp = threadIdx.x / kLanes;
  char* const kept = shared + block.heads * G::kQueryBytes;
  char* const apart = kept + block.heads * G::kNewestBytes;
  char* const end = apart + p.block.inbox_bytes;
  char* const rings = end + (-shared_address(end) & (kRingAlignment - 1));
  const uint32_t queries = shared_address(shared) + block.head * G::kQueryBytes;

  // Keys and values of earlier steps are on their way before the predecessor is done;
  // q and the newest token are its results.
  const uint32_t peeked = Loader::peek(p, block);
  const Work work = assign(p, block);
  Loader loader(p, block, work, peeked, shared_address(rings) + warp * G::kRingBytes,
                source, barriers + warp);
  if (p.newest.qkv == nullptr) pdl_wait();
  loader.start();
  const NewestSlot<G> newest(p, block, kept);
  const Exchange<G> exchange(p, block, apart, rings, of_warps, &full);
  if (threadIdx.x == 0) exchange.inbox.open();
  __syncwarp();
  barrier_arrive();
  if (p.newest.qkv == nullptr) {
    pdl_wait();
    pdl_release();
    load_queries<G>(p, block, shared);
  } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // the chain's products need it
    Turner<G> turner(p, block, newest);
    turner.pad(shared);
    pdl_wait();
    pdl_release();
    turner.run(shared);
#endif
  }
  __syncthreads();

  bool* const done = p.unified ? columns_done : nullptr;
  for (int turn = 0;; ++turn) {
    const Scheme scheme{p.unified && turn == 0};
    pass(p, block, work, scheme, loader, queries,
         newest.is_written() ? newest.key(work.kv_head - block.kv_head) : nullptr,
         exchange, turn);
    const bool again = scheme.unified && check(p, block, exchange, done);
    finish(p, block, scheme, exchange, done, /*wanted=*/turn == 0);
    if (turn == 0) count_recomputed(p, block, done);
    if (!again) return;
    Loader::release_ring();
    __syncthreads();  // what was received has been read: the rings are free
    barrier_arrive();
    loader.restart();
  }
}

// Grid: splits, key/value heads / heads of a block, rows * parts. A cluster is the
// splits.
template <typename G>
__global__ void __launch_bounds__(kLanes* G::kMaxWarps, 1)
    kernel(FDJAX_GRID_CONSTANT const Params p) {
  attend_to_row<G, ThreadLoader<G>>(p, {});
}

// The same, for what the copy engine can fetch. It is there since sm_90.
template <typename G>
__global__ void __launch_bounds__(kLanes* G::kMaxWarps, 1)
    tma_kernel(FDJAX_GRID_CONSTANT const Params p,
               FDJAX_GRID_CONSTANT const CUtensorMap source) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  attend_to_row<G, TmaLoader<G>>(p, source);
#endif
}

}  // namespace fdjax::decode_attention

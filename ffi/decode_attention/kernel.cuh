// Attention of one new token a row over its pages, with a unified maximum.
//
// Softmax does not change when every exponent is taken relative to the same number, so
// that number may be a constant of the model, phi, instead of the row's largest score
// (FlashDecoding++Next, section III). Then partial results are plain sums
//     numerator[d] = sum_t exp(s_t - phi) v_t[d],   denominator = sum_t exp(s_t - phi)
// and tiles, warps and blocks add theirs without knowing each other's maxima: nothing is
// exchanged in the loop and nothing is rescaled.
//
// It is exact as long as float32 holds the sums. Every row's largest score m is watched:
// * m >= phi + high: exp could overflow. The row is recomputed.
// * m <= phi + low: the sums could underflow as a whole. The row is recomputed.
// The second test needs the LARGEST score only. A score far below the others adds
// exp(s - m) < exp(-87 - low) of the row's largest weight before its own weight is
// flushed to zero: with low >= -60 that is under 2e-12, which no 16 bit result can show,
// in this scheme or in any other. Testing each score would recompute rows for nothing.
//
// Recomputation is the synchronised scheme (running maximum) over the same tokens by the
// same blocks, decided together by the cluster that shares the row; rows of the group
// that were within the bounds keep the result they have.
//
//   tiles.cuh    pages -> shared memory, a ring a warp
//   attend.cuh   scores, the two schemes, weighted values
//   combine.cuh  warps -> block -> cluster -> output
#pragma once

#include "decode_attention/combine.cuh"

namespace fdjax::decode_attention {

// The block's query heads, a padded group for each key/value head; zeros as padding.
template <typename G>
__device__ void load_queries(const Params& p, char* queries) {
  using T = typename G::T;
  const int64_t first_head =
      (int64_t{blockIdx.z} * p.kv_heads + blockIdx.y * p.head_count) * p.group;
  const uint4* source = reinterpret_cast<const uint4*>(
      static_cast<const T*>(p.q) + first_head * G::kHeadDim);
  const int chunks = p.head_count * G::kColumns * G::kChunks;
  for (int i = threadIdx.x; i < chunks; i += G::kWarps * kLanes) {
    const int row = i / G::kChunks, chunk = i % G::kChunks;
    const int head = row / G::kColumns, column = row % G::kColumns;
    uint4 value{0, 0, 0, 0};
    if (column < p.group) {
      value = source[(head * p.group + column) * G::kChunks + chunk];
    }
    *reinterpret_cast<uint4*>(queries + row * G::kRowBytes + chunk * 16) = value;
  }
}

// Everything between a block's tokens and its share of the cluster's sums. `used`: stages
// of the ring taken by earlier passes.
template <typename Scheme, typename G>
__device__ void pass(const Params& p, const Work& work, const Ring<G>& ring, int used,
                     uint32_t queries, const Exchange<G>& exchange) {
  const int split = blockIdx.x, splits = gridDim.x;
  if (threadIdx.x / kLanes == G::kWarps) {
    produce(p, work, ring, used);
    __syncthreads();
  } else {
    Partial<G> partial;
    attend<Scheme>(p, work, ring, used, queries, partial);
    __syncthreads();  // every stage of the block is read
    store_partial(exchange, partial);
  }
  cluster_barrier();  // every block's partials stand, and its ring may be overwritten
  send<Scheme>(p, exchange, split, splits);
  cluster_barrier();
}

// Grid: (splits, key/value heads / head_count, rows); a cluster is the splits.
template <typename G>
__global__ void __launch_bounds__(G::kThreads, 1)
    kernel(FDJAX_GRID_CONSTANT const Params p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ Column columns[G::kWarps * G::kColumns];
  __shared__ bool outside[G::kWarps * G::kColumns];
  __shared__ uint64_t barriers[2 * G::kStages];
  const int split = blockIdx.x, splits = gridDim.x;
  char* stages = shared + p.head_count * G::kQueryBytes;
  const uint32_t queries = shared_address(shared);
  const Ring<G> ring{shared_address(stages), shared_address(barriers),
                     shared_address(barriers + G::kStages)};
  const Work work = assign<G>(p, split, splits);
  if (threadIdx.x == 0) {
    ring.initialise();
    fence_barriers();
  }
  __syncthreads();
  if (threadIdx.x / kLanes != G::kWarps) {
    wait_for_predecessor();  // q is its result
    load_queries<G>(p, shared);
    named_barrier(1, G::kWarps * kLanes);
  }
  release_successor();

  const Exchange<G> exchange(p, stages, splits);
  const int column = threadIdx.x;
  int32_t* recomputed = p.recomputed + blockIdx.z * p.kv_heads + work.kv_head;
  if (p.unified) {
    pass<Unified>(p, work, ring, 0, queries, exchange);
    bool recompute = false;
    if (column < exchange.columns) {
      const Column sum = sum_splits<Unified>(exchange, column, splits);
      // -inf: the query sees no token, and its zeros are right.
      recompute = sum.highest >= p.high ||
                  (sum.highest <= p.low && sum.highest != -INFINITY);
      columns[column] = sum;
      outside[column] = recompute;
    }
    recompute = __syncthreads_or(recompute);
    finish<Unified>(p, exchange, columns, split, splits,
                    [&](int c) { return !outside[c]; });
    if (split == 0 && threadIdx.x < p.head_count) {
      int count = 0;
      for (int g = 0; g < p.group; ++g) count += outside[threadIdx.x * p.group + g];
      recomputed[threadIdx.x] = count;
    }
    if (!recompute) return;  // the whole cluster, which has the same columns
    fence_for_copies();
    __syncthreads();
  } else if (split == 0 && threadIdx.x < p.head_count) {
    recomputed[threadIdx.x] = 0;
  }
  pass<Running>(p, work, ring, p.unified ? work.stages : 0, queries, exchange);
  if (column < exchange.columns) {
    columns[column] = sum_splits<Running>(exchange, column, splits);
  }
  __syncthreads();
  finish<Running>(p, exchange, columns, split, splits,
                  [&](int c) { return !p.unified || outside[c]; });
}

}  // namespace fdjax::decode_attention

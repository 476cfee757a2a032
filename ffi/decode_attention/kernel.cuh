// Attention of one new token a row over its pages, by a plan, with a unified maximum.
//
// Softmax does not change when every exponent is taken relative to the same number, so
// that number may be a constant of the model, phi, instead of the row's largest score
// (FlashDecoding++Next, section III). Then partial results are plain sums
//     numerator[d] = sum_t exp(s_t - phi) v_t[d],   denominator = sum_t exp(s_t - phi)
// and tiles, warps and blocks add theirs without knowing each other's maxima: nothing
// is exchanged in the loop and nothing is rescaled.
//
// It is exact as long as float32 holds the sums. The largest score m of every query
// head of a row is watched:
// * m >= phi + high: exp could overflow. The head is recomputed.
// * m <= phi + low: the sums could underflow as a whole. The head is recomputed.
// The second test needs the LARGEST score only. A score far below the others adds
// exp(s - m) < exp(-87 - low) of the row's largest weight before its own weight is
// flushed to zero: with low >= -60 that is under 2e-12, which no 16 bit result can
// show, in this scheme or in any other. Testing each score would recompute heads
// for nothing.
//
// Recomputation is the synchronised scheme (running maximum) over the same tokens by
// the same blocks, decided together by the cluster that shares the row; heads of
// the group that were within the bounds keep the result they have.
//
//   newest.cuh         before all that, if wanted: RoPE, and the newest token's page
//   tiles.cuh          which tokens are whose, and where they lie in shared memory
//   tma_ring.cuh       a ring a warp in shared memory, which TMA fills
//   tma_loader.cuh     pages -> ring by TMA
//   slot_loader.cuh    the same of single slots, of which most are neighbours
//   thread_loader.cuh  the same by threads, for what TMA does not take
//   attend.cuh         scores, the two schemes, weighted values
//   combine.cuh        warps -> block -> cluster -> output
//   inbox.cuh          how the blocks of a cluster send each other sums
//   merge.cuh          pieces of a row that was cut, added by the block that is last
//   sums.cuh           four dimensions of a sum: how they add, and are written
//   ptx.cuh            instructions without words in C++
#pragma once

#include "decode_attention/combine.cuh"
#include "decode_attention/newest.cuh"
#include "decode_attention/slot_loader.cuh"
#include "decode_attention/thread_loader.cuh"
#include "decode_attention/tma_loader.cuh"
#include "fdjax/pdl.cuh"

namespace fdjax::decode_attention {

// The block's query heads, a padded group for each key/value head; zeros as padding.
template <typename G>
__device__ void load_queries(const Params& p, const Block& block, char* queries) {
  const uint4* source =
      static_cast<const uint4*>(p.q) + block.query_head(p) * G::kChunks;
  const int chunks = block.heads() * G::kColumns * G::kChunks;
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

// From a warp's sums to what its block has received of the cluster's, whose blocks have
// arrived at a barrier when their inboxes were free. `parity`: of the inbox.
template <typename G>
__device__ void exchange_sums(const Params& p, const Block& block, Scheme scheme,
                              const Exchange<G>& exchange, const Partial<G>& partial,
                              uint32_t parity) {
  store_partial(block, scheme, exchange, partial);
  barrier_wait();                     // every inbox is free
  if (!exchange.is_apart) barrier();  // and every ring is
  __syncthreads();                    // this block's partials stand
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

// What will be computed again; nothing if `done` is nullptr. Of a row in pieces,
// `merge` counts.
__device__ inline void count_recomputed(const Params& p, const Block& block,
                                        const bool* done) {
  if (const int head = threadIdx.x;
      block.split == 0 && head < block.heads() && block.is_whole()) {
    int count = 0;
    for (int g = 0; g < p.group && done != nullptr; ++g) {
      count += !done[head * p.group + g];
    }
    p.recomputed[int64_t{block.row()} * p.kv_heads + block.kv_head() + head] = count;
  }
}

// The items of this block's cluster, one after the other (attention_plan/plan.h). In
// shared memory: the kernel has no register to spare.
struct Schedule {
  static constexpr int kAccesses = sizeof(Item) / sizeof(uint4);
  Item item, next;
  int round;
  int count;  // of all items

  __device__ bool is_first() const { return round == 0; }

  // The first item on its way, with the number of all: asked for before all else. (The
  // plan has room for as many items as there are slots; what is read there in vain is
  // not used.)
  struct First {
    uint4 item;
    int count;

    __device__ explicit First(const Params& p)
        : item(threadIdx.x < kAccesses ? load_kept(source(p, 0)) : uint4{}),
          count(load_kept(p.plan + attention_plan::kItems)) {}
  };

  // By all threads, once.
  __device__ void open(const First& first) {
    if (threadIdx.x == 0) {
      round = 0;
      count = first.count;
    }
    if (threadIdx.x < kAccesses) access(&item)[threadIdx.x] = first.item;
    __syncthreads();
  }

  __device__ bool has_item(const Params& p) const { return place(p, round) < count; }
  __device__ bool has_next(const Params& p) const {
    return place(p, round + 1) < count;
  }

  // By all threads, while the item's first tokens are on their way.
  __device__ void look_ahead(const Params& p) {
    if (!has_next(p) || threadIdx.x >= kAccesses) return;
    access(&next)[threadIdx.x] = load_kept(source(p, round + 1));
  }

  // By all threads, when the item has been done.
  __device__ void advance() {
    __syncthreads();
    if (threadIdx.x < kAccesses)
      access(&item)[threadIdx.x] = access(&next)[threadIdx.x];
    if (threadIdx.x == 0) ++round;
    __syncthreads();
  }

 private:
  __device__ static uint4* access(Item* item) { return reinterpret_cast<uint4*>(item); }

  __device__ static int place(const Params& p, int turn) {
    const int slots = p.block.slots, cluster = blockIdx.y;
    return turn * slots + (turn % 2 == 0 ? cluster : slots - 1 - cluster);
  }

  // What this thread reads of an item.
  __device__ static const uint4* source(const Params& p, int turn) {
    const auto* items = reinterpret_cast<const uint4*>(p.plan + p.block.items_at);
    return items + place(p, turn) * kAccesses + threadIdx.x;
  }
};

// A block's memory behind its queries: what outlives the rings, and they.
template <typename G>
struct Room {
  char* newest;
  char* inbox;
  char* rings;

  __device__ Room(const Params& p, char* shared)
      : newest(shared + p.block.heads * G::kQueryBytes),
        inbox(newest + p.block.heads * G::kNewestBytes) {
    char* const end = inbox + p.block.inbox_bytes;
    rings = end + (-shared_address(end) & (kRingAlignment - 1));
  }
};

// The item's queries, and the row's newest key and value if they are the block's to
// write: true, and then they lie in shared memory, too. Waits for the predecessor that
// makes them.
template <typename G>
__device__ bool prepare(const Params& p, const Block& block, const Schedule& schedule,
                        char* shared) {
  const NewestSlot<G> newest(p, block, Room<G>(p, shared).newest);
  if (p.newest.qkv == nullptr) {
    load_queries<G>(p, block, shared);
  } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // the chain's GEMMs need it
    Turner<G> turner(p, block, newest);
    turner.pad(shared);
    if (schedule.is_first()) {
      pdl_wait();
      pdl_release();
    }
    turner.run(shared);
#endif
  }
  __syncthreads();
  return newest.is_written();
}

// What is shared by the threads of a block.
template <typename G, typename Loader>
struct State {
  typename Loader::Barriers barriers[G::kMaxWarps];
  Column of_warps[G::kMaxWarps * G::kColumns];
  bool done[G::kMaxWarps * G::kColumns];
  uint64_t full;
  uint32_t passes;  // over the tokens of items: whose parity is the inbox's
  Schedule schedule;
};

// From the warps' sums to the item's result. Returns whether rows left the bounds, and
// have to be computed again; it is not `wanted` then that they are left out.
template <typename G, typename Loader>
__device__ bool conclude(const Params& p, State<G, Loader>& state, char* shared,
                         bool wanted, const Partial<G>& partial) {
  const Block block(p, state.schedule.item);
  const Room<G> room(p, shared);
  const Scheme scheme{p.unified && wanted};
  bool* const done = p.unified ? state.done : nullptr;
  const Exchange<G> exchange(p, block, room.inbox, room.rings, state.of_warps,
                             &state.full);
  exchange_sums(p, block, scheme, exchange, partial, state.passes & 1);
  const bool again = scheme.unified && check(p, block, exchange, done);
  finish(p, block, scheme, exchange, done, wanted);
  if (wanted) count_recomputed(p, block, done);
  // Nothing comes after it: the sooner the block ends, the sooner others begin.
  if (!again && block.is_whole() && !state.schedule.has_next(p)) return false;
  Loader::release_ring();
  __syncthreads();  // what was received has been read: the rings are free
  if (threadIdx.x == 0) ++state.passes;
  if (!again && !block.is_whole() && is_last_done(p, block)) {
    merge<typename G::T, G::kHeadDim / 4>(p, block);
  }
  return again;
}

// All that a block does.
template <typename G, typename Loader>
__device__ __forceinline__ void attend_to_items(const Params& p,
                                                const typename Loader::Source& source) {
  extern __shared__ __align__(512) char shared[];
  __shared__ State<G, Loader> state;
  if (p.newest.qkv == nullptr) {  // the plan, too, may be the predecessor's
    pdl_wait();
    pdl_release();
  }
  const Schedule::First first(p);
  const int warp = threadIdx.x / kLanes;
  Work work;
  Loader loader(p, work,
                shared_address(Room<G>(p, shared).rings) + warp * G::kRingBytes, source,
                state.barriers + warp);
  if (threadIdx.x == 0) {
    Inbox{&state.full, 0}.open();
    state.passes = 0;
  }
  state.schedule.open(first);
  if (!state.schedule.has_item(p)) return;
  for (;;) {
    // Keys and values of earlier steps are on their way before the predecessor is done;
    // q and the newest token are its results.
    const Block block(p, state.schedule.item);
    work = assign(p, block);
    loader.locate();
    loader.start();
    __syncwarp();
    barrier_arrive();
    state.schedule.look_ahead(p);
    const bool has_newest = prepare<G>(p, block, state.schedule, shared);
    const uint32_t queries = shared_address(shared) + block.head * G::kQueryBytes;
    const uint32_t newest = has_newest ? shared_address(Room<G>(p, shared).newest) +
                                             block.head * G::kNewestBytes
                                       : 0;
    for (bool wanted = true;; wanted = false) {
      Partial<G> partial;
      if (p.unified && wanted) {
        attend<true>(p, work, loader, queries, newest, partial);
      } else {
        attend<false>(p, work, loader, queries, newest, partial);
      }
      if (!conclude(p, state, shared, wanted, partial)) break;
      __syncthreads();  // all have the passes that one thread has counted
      barrier_arrive();
      loader.locate();
      loader.start();
    }
    if (!state.schedule.has_next(p)) return;
    state.schedule.advance();
  }
}

// Grid: splits, clusters. A cluster is the splits. Addresses of its own copies leave a
// thread too few of 128 registers: no block of 16 warps.
inline constexpr int kMaxCopyingWarps = 8;
template <typename G>
__global__ void __launch_bounds__(kLanes* kMaxCopyingWarps, 1)
    kernel(FDJAX_GRID_CONSTANT const Params p) {
  attend_to_items<G, ThreadLoader<G>>(p, {});
}

// The same, for what TMA can fetch. It is there since sm_90.
template <typename G>
__global__ void __launch_bounds__(kLanes* G::kMaxWarps, 1)
    tma_kernel(FDJAX_GRID_CONSTANT const Params p,
               FDJAX_GRID_CONSTANT const CUtensorMap source) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  attend_to_items<G, TmaLoader<G>>(p, source);
#endif
}

// The same, where the page table has slots, most of them neighbours.
template <typename G>
__global__ void __launch_bounds__(kLanes* G::kMaxWarps, 1)
    slot_kernel(FDJAX_GRID_CONSTANT const Params p,
                FDJAX_GRID_CONSTANT const SlotSource source) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  attend_to_items<G, SlotLoader<G>>(p, source);
#endif
}

}  // namespace fdjax::decode_attention

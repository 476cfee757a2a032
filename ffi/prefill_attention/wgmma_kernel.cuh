// Attention of many new tokens a sequence on Hopper's tensor cores: FlashAttention-3's
// loop. While a warpgroup weighs the scores of some keys, the tensor cores multiply the
// values of those before:
//
//   producer    keys 0 | values 0, keys 1 | values 1, keys 2 | ...
//   consumers            Q K0 | weigh 0 | Q K1, W0 V0 | weigh 1 | Q K2, W1 V1 | ...
//
// Each of two consumers has 64 of the tile's 128 rows. Blocks stay, and take item after
// item: the first keys of the next one are there when one ends.
#pragma once

#include <type_traits>

#include "fdjax/pdl.cuh"
#include "prefill_attention/finish.cuh"
#include "prefill_attention/wgmma_gemms.cuh"
#include "prefill_attention/wgmma_ring.cuh"

namespace fdjax::prefill_attention {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Waits for all threads of a warpgroup; barrier 0 is __syncthreads'.
__device__ inline void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}

// A consumer: a warpgroup and its 64 rows.
template <typename G>
class Consumer {
 public:
  // `descriptions`: room for the rows of a tile.
  __device__ Consumer(const Params& params, const Buffers<G>& buffers,
                      Query* descriptions)
      : params_(params),
        p_(params.attention),
        buffers_(buffers),
        barriers_(*buffers.barriers),
        keys_(barriers_.halves[kKeys]),
        values_(barriers_.halves[kValues]),
        group_(threadIdx.x / kGroupThreads - 1),
        warp_((threadIdx.x - kGroupThreads) / kLanes),
        warp_row_(warp_ * 16),
        described_(descriptions + warp_row_) {}

  __device__ void run() {
    if constexpr (G::kUnified) {
      go_through<Pass::kUnified>();
      release_queries();
      if constexpr (G::kPaired) pass();
      go_through<Pass::kAgain>();
    } else {
      go_through<Pass::kOnly>();
    }
  }

 private:
  // With a unified maximum some items come a second time. A loop for each pass: where
  // one may skip an item, ptxas takes nothing to be uniform, and fills the registers
  // that GEMMs read addresses from anew for each tile.
  enum class Pass { kOnly, kUnified, kAgain };

  template <Pass kPass>
  __device__ void go_through() {
    for (;;) {
      mbarrier_wait(&barriers_.queries.full[queries_.stage], queries_.parity);
      work_ = buffers_.work[queries_.stage];
      if (work_.tokens == 0) return;
      if (is_others<kPass>()) {
        skip();
        continue;
      }
      const int lane = threadIdx.x % kLanes;
      __syncwarp();  // the last item's descriptions have been read
      if (lane < 16) described_[lane] = describe(p_, work_, warp_row_ + lane);
      __syncwarp();
      if constexpr (kPass == Pass::kUnified) {
        Rows<G> rows(described_, p_.phi);
        attend<true>(rows);
        keep_or_note(rows);
      } else {
        Rows<G> rows(described_);
        attend<false>(rows);
        if constexpr (kPass == Pass::kAgain) {
          if (!buffers_.retries->has(warp_, work_.round)) continue;
        }
        finish<G>(params_, work_, warp_row_, rows);
      }
    }
  }

  // Are all rows the other warpgroup's? So it is where a tile has few queries: those of
  // drafts, or of a shared prefix. A vote is the same in all lanes to ptxas, too.
  template <Pass kPass>
  __device__ bool is_others() const {
    if constexpr (kPass != Pass::kAgain) {
      return __all_sync(~0u, group_ * kGroupRows >= work_.tokens * p_.group);
    } else {
      bool own = false;
      for (int warp = group_ * kGroupWarps; warp < (group_ + 1) * kGroupWarps; ++warp) {
        own |= buffers_.retries->has(warp, work_.round);
      }
      return !own;
    }
  }

  // Stores what the unified maximum suits.
  __device__ void keep_or_note(const Rows<G>& rows) {
    if (suits<G>(p_, work_, described_, warp_row_, rows)) {
      finish<G>(params_, work_, warp_row_, rows);
    } else if (threadIdx.x % kLanes == 0) {
      buffers_.retries->add(warp_, work_.round);
      if (work_.record >= 0) return;  // of pieces the merge counts
      atomicAdd(p_.recomputed + work_.row,
                min(16, work_.tokens * p_.group - warp_row_));
    }
  }

  // ptxas moves the exponentials behind the second wait. To keep them before it, beside
  // the GEMM with the values, is 3 % slower: the card is at its power limit (what that
  // means is in docs/notebook/2026-11-23-prefill-attention.md).
  template <bool kUnified>
  __device__ void attend(Rows<G>& rows) {
    Scores<G> scores;
    Weights<G> weights;
    const uint64_t queries = wgmma_matrix(buffers_.queries(queries_.stage) +
                                          group_ * kGroupRows * kLineBytes);
    int first = loop_begin<G>(work_);
    mbarrier_wait(&keys_.full[cursor_.stage], cursor_.parity);
    multiply_keys<G>(queries, buffers_.half(kKeys, cursor_.stage), scores);
    wgmma_wait<0>();
    finish_keys(cursor_.stage, first, scores);
    weigh_keys<kUnified>(first, rows, scores);
    pack_all<G>(scores, weights);
    for (first += G::kTileKeys; first < loop_end<G>(work_); first += G::kTileKeys) {
      const Cursor before = cursor_;
      cursor_.advance(kStages);
      mbarrier_wait(&keys_.full[cursor_.stage], cursor_.parity);
      multiply_keys<G>(queries, buffers_.half(kKeys, cursor_.stage), scores);
      wait_for_values(before, first - G::kTileKeys);
      multiply_values<G>(weights, buffers_.half(kValues, before.stage), rows);
      wgmma_wait<1>();
      finish_keys(cursor_.stage, first, scores);
      const auto factors = weigh_keys<kUnified>(first, rows, scores);
      wgmma_wait<0>();
      wgmma_pin(out_of<G>(rows));
      release(&values_.empty[before.stage]);
      if constexpr (!kUnified) rescale(factors, rows);
      pack_all<G>(scores, weights);
    }
    wait_for_values(cursor_, first - G::kTileKeys);
    multiply_values<G>(weights, buffers_.half(kValues, cursor_.stage), rows);
    wgmma_wait<0>();
    wgmma_pin(out_of<G>(rows));
    release(&values_.empty[cursor_.stage]);
    cursor_.advance(kStages);
  }

  // Scores become weights. Returns by what earlier ones must be multiplied, if they
  // must.
  template <bool kUnified>
  __device__ auto weigh_keys(int first, Rows<G>& rows, Scores<G>& scores) const {
    const float scale =
        finish_scores<G>(params_, work_, described_, warp_row_, first, scores);
    if constexpr (kUnified) {
      weigh_unified<G>(scale, p_.phi, rows, scores);
      return nullptr;
    } else {
      return weigh<G>(scale, rows, scores);
    }
  }

  // Gives back what the producer brings: a tile of keys at least, of an item without
  // keys, too.
  __device__ void skip() {
    release_queries();
    int first = loop_begin<G>(work_);
    do {
      mbarrier_wait(&keys_.full[cursor_.stage], cursor_.parity);
      release(&keys_.empty[cursor_.stage]);
      mbarrier_wait(&values_.full[cursor_.stage], cursor_.parity);
      release(&values_.empty[cursor_.stage]);
      cursor_.advance(kStages);
      first += G::kTileKeys;
    } while (first < loop_end<G>(work_));
  }

  // Slots of keys that are not the item's may hold NaN, and a weight of zero would not
  // make that zero. Both warpgroups write the same zeros, and wait for nobody.
  __device__ void wait_for_values(const Cursor& cursor, int first) const {
    mbarrier_wait(&values_.full[cursor.stage], cursor.parity);
    if (first >= work_.key_begin && first + G::kTileKeys <= work_.key_end) return;
    const uint32_t values = buffers_.half(kValues, cursor.stage);
    for (int i = threadIdx.x % kGroupThreads; i < G::kKeyBytes / 16;
         i += kGroupThreads) {
      const int key = first + i / (kLineBytes / 16) % G::kTileKeys;
      if (key >= work_.key_begin && key < work_.key_end) continue;
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(values + i * 16),
                   "r"(0)
                   : "memory");
    }
    async_proxy_fence();
    sync_group(group_);
  }

  // The scores are there: so the keys, and after the last the queries, may go.
  __device__ void finish_keys(int stage, int first, Scores<G>& scores) {
    wgmma_pin(flat<G>(scores));
    release(&keys_.empty[stage]);
    if (first + G::kTileKeys < loop_end<G>(work_)) return;
    release_queries();
  }

  // All of this warp have read a buffer of keys or values, which in a pair both blocks
  // fill.
  __device__ static void release(uint64_t* empty) {
    const int lane = threadIdx.x % kLanes;
    if constexpr (G::kPaired) {
      if (lane < kPair) mbarrier_arrive_cluster(cluster_address(empty, lane));
    } else if (lane == 0) {
      mbarrier_arrive(empty);
    }
  }

  // By every lane, as each has read what the item is: racecheck does not see the order
  // that one lane's arrival behind __syncwarp is.
  __device__ void release_queries() {
    mbarrier_arrive(&barriers_.queries.empty[queries_.stage]);
    queries_.advance(G::kQueryStages);
  }

  // Tells both producers of a pair that this warp's notes are complete.
  __device__ void pass() {
    const int lane = threadIdx.x % kLanes;
    __syncwarp();  // one lane has noted, another one tells
    if (lane < kPair) {
      mbarrier_release_cluster(cluster_address(&barriers_.passed, lane));
    }
    __syncwarp();
  }

  const Params& params_;
  const decode_attention::Params& p_;
  const Buffers<G>& buffers_;
  Barriers& barriers_;
  Ring &keys_, &values_;
  const int group_, warp_;  // which warpgroup; which warp of all consumers
  const int warp_row_;      // the warp's first row
  Query* const described_;  // of the warp's rows
  Work work_{};
  Cursor cursor_;   // of keys and of values
  Cursor queries_;  // of the next item, once an item's keys have all been multiplied
};

#endif

// Grid: as many blocks as there is room for; they share the items. Clusters of
// G::kBlocks.
template <typename G>
__global__ void __launch_bounds__(G::kThreads, 1)
    wgmma_kernel(FDJAX_GRID_CONSTANT const Params params,
                 FDJAX_GRID_CONSTANT const Sources sources) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared[];
  __shared__ Barriers barriers;
  __shared__ Work work[G::kQueryStages];
  __shared__ Query descriptions[kTileRows];
  __shared__ std::conditional_t<G::kUnified, Retries, char> retries;
  const uint32_t unaligned = shared_address(shared);
  const Buffers<G> buffers{
      .start = (unaligned + G::kAlignment - 1) / G::kAlignment * G::kAlignment,
      .barriers = &barriers,
      .work = work,
      .retries = reinterpret_cast<Retries*>(&retries)};
  if constexpr (G::kUnified) retries.clear();
  if (threadIdx.x == 0) barriers.init(G::kBlocks);
  __syncthreads();
  if constexpr (G::kPaired) {
    cluster_arrive();  // the other block's barriers are there
    cluster_wait();
  }
  pdl_release();  // what adds pieces waits for all of them
  if (threadIdx.x < kGroupThreads) {
    release_registers<40>();
    if (threadIdx.x < kLanes) Producer<G>(params, sources, buffers).run();
  } else {
    acquire_registers<232>();
    Consumer<G>(params, buffers, descriptions).run();
  }
  if constexpr (G::kPaired) {
    __syncwarp();
    cluster_arrive();  // no block leaves before the other one's arrivals have come
    cluster_wait();
  }
  // What waits for this kernel waits for rows' own attention, too (launch.cuh).
  if constexpr (G::kShared) pdl_wait();
#endif
}

}  // namespace fdjax::prefill_attention

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

#include "fdjax/wgmma.cuh"
#include "prefill_attention/softmax.cuh"
#include "prefill_attention/wgmma_ring.cuh"

namespace fdjax::prefill_attention {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A consumer: a warpgroup and its 64 rows.
template <typename G>
class Consumer {
 public:
  // `descriptions`: room for the rows of a tile.
  __device__ Consumer(const Params& params, const Buffers<G>& buffers,
                      Query* descriptions)
      : p_(params.attention),
        buffers_(buffers),
        barriers_(*buffers.barriers),
        keys_(barriers_.rings[kKeys]),
        values_(barriers_.rings[kValues]),
        group_row_((threadIdx.x / kGroupThreads - 1) * kGroupRows),
        warp_row_(group_row_ + threadIdx.x % kGroupThreads / kLanes * 16),
        described_(descriptions + warp_row_) {}

  __device__ void run() {
    for (uint32_t parity = 0;; parity ^= 1) {
      wait(&barriers_.queries_full, parity);
      work_ = *buffers_.work;
      if (work_.tokens == 0) return;
      const int lane = threadIdx.x % kLanes;
      __syncwarp();  // the last item's descriptions have been read
      if (lane < 16) described_[lane] = describe(p_, work_, warp_row_ + lane);
      __syncwarp();
      Rows<G> rows(described_);
      attend(rows);
      store<G>(p_, work_, warp_row_, rows);
    }
  }

 private:
  static constexpr int kGroupRows = kTileRows / kConsumers;
  using Weights = uint32_t[G::kTileKeys / 16][4];

  __device__ void attend(Rows<G>& rows) {
    Scores<G> scores;
    Weights weights;
    int first = work_.key_begin / G::kTileKeys * G::kTileKeys;
    wait(&keys_.full[cursor_.stage], cursor_.parity);
    multiply_keys(cursor_.stage, scores);
    wgmma_wait<0>();
    finish_keys(cursor_.stage, first, scores);
    weigh_keys<G>(p_, work_, described_, first, rows, scores);
    pack_all(scores, weights);
    for (first += G::kTileKeys; first < work_.key_end; first += G::kTileKeys) {
      const Cursor before = cursor_;
      cursor_.advance(kStages);
      wait(&keys_.full[cursor_.stage], cursor_.parity);
      multiply_keys(cursor_.stage, scores);
      wait(&values_.full[before.stage], before.parity);
      multiply_values(before.stage, weights, rows);
      wgmma_wait<1>();
      finish_keys(cursor_.stage, first, scores);
      const Factors<G> factors =
          weigh_keys<G>(p_, work_, described_, first, rows, scores);
      wgmma_wait<0>();
      wgmma_pin(out_of(rows));
      release(&values_.empty[before.stage]);
      rescale(factors, rows);
      pack_all(scores, weights);
    }
    wait(&values_.full[cursor_.stage], cursor_.parity);
    multiply_values(cursor_.stage, weights, rows);
    wgmma_wait<0>();
    wgmma_pin(out_of(rows));
    release(&values_.empty[cursor_.stage]);
    cursor_.advance(kStages);
  }

  // Begins a group; so does multiply_values.
  __device__ void multiply_keys(int stage, Scores<G>& scores) const {
    const uint64_t a = wgmma_matrix(buffers_.queries + group_row_ * 128);
    const uint64_t b = wgmma_matrix(buffers_.half(kKeys, stage));
    auto& d = reinterpret_cast<float (&)[G::kTileKeys / 2]>(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < G::kHeadDim / 16; ++k) {
      const int step = k % 4 * kWgmmaStepK;
      const uint64_t own = a + k / 4 * (kTileRows * 128 >> 4) + step;
      const uint64_t other = b + k / 4 * (G::kTileKeys * 128 >> 4) + step;
      if (k == 0) {
        Wgmma<typename G::T, G::kTileKeys>::set(d, own, other);
      } else {
        Wgmma<typename G::T, G::kTileKeys>::add(d, own, other);
      }
    }
    wgmma_commit();
  }

  // The scores are there: so the keys, and after the last the queries, may go.
  __device__ void finish_keys(int stage, int first, Scores<G>& scores) const {
    wgmma_pin(reinterpret_cast<float (&)[G::kTileKeys / 2]>(scores));
    release(&keys_.empty[stage]);
    if (first + G::kTileKeys >= work_.key_end)
      mbarrier_arrive(&barriers_.queries_empty);
  }

  __device__ void multiply_values(int stage, const Weights& weights,
                                  Rows<G>& rows) const {
    constexpr int kBox = G::kTileKeys * 128;
    constexpr int kColumns = G::kHeadDim < 128 ? G::kHeadDim : 128;  // at a time
    wgmma_pin(out_of(rows));
    wgmma_fence();
#pragma unroll
    for (int column = 0; column < G::kHeadDim; column += kColumns) {
      auto& d = reinterpret_cast<float (&)[kColumns / 2]>(rows.out[0][column / 8]);
      const uint64_t b =
          wgmma_rows(buffers_.half(kValues, stage) + column / 64 * kBox, kBox);
#pragma unroll
      for (int k = 0; k < G::kTileKeys / 16; ++k) {
        Wgmma<typename G::T, kColumns>::add_rows(d, weights[k],
                                                 b + k * (16 * 128 >> 4));
      }
    }
    wgmma_commit();
  }

  __device__ static void pack_all(const Scores<G>& scores, Weights& weights) {
#pragma unroll
    for (int k = 0; k < G::kTileKeys / 16; ++k) pack<G>(scores, 0, k, weights[k]);
  }

  __device__ static float (&out_of(Rows<G>& rows)) [G::kHeadDim / 2] {
    return reinterpret_cast<float (&)[G::kHeadDim / 2]>(rows.out);
  }

  __device__ static void wait(uint64_t* full, uint32_t parity) {
    mbarrier_wait(full, parity);
    async_proxy_fence();  // the copies are as if threads had written
  }

  __device__ static void release(uint64_t* empty) {
    if (threadIdx.x % kLanes == 0) mbarrier_arrive(empty);
  }

  const decode_attention::Params& p_;
  const Buffers<G>& buffers_;
  Barriers& barriers_;
  Ring &keys_, &values_;
  const int group_row_, warp_row_;  // the first of this warpgroup, and warp
  Query* const described_;          // of the warp's rows
  Work work_{};
  Cursor cursor_;
};

#endif

// Grid: as many blocks as there is room for; they share the tiles.
template <typename G>
__global__ void __launch_bounds__(G::kThreads, 1)
    wgmma_kernel(FDJAX_GRID_CONSTANT const Params params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared[];
  __shared__ Barriers barriers;
  __shared__ Work work;
  __shared__ Query descriptions[kTileRows];
  const uint32_t unaligned = shared_address(shared);
  const Buffers<G> buffers{
      .queries = (unaligned + G::kAlignment - 1) / G::kAlignment * G::kAlignment,
      .barriers = &barriers,
      .work = &work};
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    release_registers<40>();
    Producer<G>(params, buffers).run();
  } else {
    acquire_registers<232>();
    Consumer<G>(params, buffers, descriptions).run();
  }
#endif
}

}  // namespace fdjax::prefill_attention

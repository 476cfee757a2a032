// Hopper's kernel: what lies where in shared memory, who waits for whom, and the
// producer, which fills it.
//
// A warpgroup loads for two that multiply, one tile of queries after the other. Queries
// have one buffer, keys and values two each; every buffer has a barrier that says full
// and one that says empty.
#pragma once

#include <cstdint>

#include "fdjax/mbarrier.cuh"
#include "prefill_attention/load.cuh"

namespace fdjax::prefill_attention {

inline constexpr int kConsumers = 2;  // warpgroups, of 64 rows each
inline constexpr int kConsumerWarps = 4 * kConsumers;
inline constexpr int kGroupThreads = 128;
inline constexpr int kStages = 2;  // 3 gain nothing

// `kHeadDimension`: the largest size of a head; smaller ones are padded with zeros.
template <typename Element, int kHeadDimension>
struct WgmmaGeometry {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kLoaders = 4;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kTileKeys = kHeadDim <= 128 ? 128 : 64;
  static constexpr int kRowTiles = 1;
  static constexpr int kKeyTiles = kTileKeys / 8;
  static constexpr int kQueryBytes = kTileRows * kHeadDim * 2;
  static constexpr int kKeyBytes = kTileKeys * kHeadDim * 2;  // and of values
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes =
      kQueryBytes + 2 * kStages * kKeyBytes + kAlignment;

  // Boxes of 64 columns, 128 bytes a row, swizzled as wgmma wants them.
  template <int kRows>
  __device__ static uint32_t at(int row, int chunk) {
    return (chunk / 8 * kRows + row) * 128 + (chunk % 8 ^ row % 8) * 16;
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct Barriers {
  uint64_t queries_full, queries_empty;
  uint64_t keys_full[kStages], keys_empty[kStages];
  uint64_t values_full[kStages], values_empty[kStages];

  __device__ void init() {
    mbarrier_init(&queries_full, kGroupThreads + 1);  // and who wrote the work
    mbarrier_init(&queries_empty, kConsumerWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&keys_full[stage], kGroupThreads);
      mbarrier_init(&keys_empty[stage], kConsumerWarps);
      mbarrier_init(&values_full[stage], kGroupThreads);
      mbarrier_init(&values_empty[stage], kConsumerWarps);
    }
    mbarrier_init_fence();
  }
};

template <typename G>
struct Buffers {
  uint32_t queries;
  Barriers* barriers;
  Work* work;  // whose queries these are; without tokens: there is no more

  __device__ uint32_t keys(int stage) const {
    return queries + G::kQueryBytes + stage * 2 * G::kKeyBytes;
  }
  __device__ uint32_t values(int stage) const { return keys(stage) + G::kKeyBytes; }
};

// Fills the buffers, item after item. The items of a block are a grid apart, in order
// of their keys; every other round goes backwards, so that blocks end together.
template <typename G>
class Producer {
 public:
  __device__ Producer(const Params& params, const Buffers<G>& buffers)
      : params_(params), p_(params.attention), buffers_(buffers) {}

  __device__ void run() {
    for (int round = 0;; ++round) {
      const int place =
          round % 2 == 0 ? blockIdx.x : static_cast<int>(gridDim.x - 1 - blockIdx.x);
      const Work work = work_of(params_, round * gridDim.x + place);
      if (work.tokens == 0) break;
      load(work);
    }
    hand_over(Work{});
  }

 private:
  // Keys are one tile ahead of values, as their consumers are. The first of them need
  // not wait until the last item's queries are done with.
  __device__ void load(const Work& work) {
    Loader<G> keys(p_, work, 0), values(p_, work, 1);
    const int begin = work.key_begin / G::kTileKeys * G::kTileKeys;
    load_keys(keys);
    hand_over(work);
    for (int first = begin + G::kTileKeys; first < work.key_end;
         first += G::kTileKeys) {
      load_keys(keys);
      load_values(values);
    }
    load_values(values);
  }

  __device__ void load_keys(Loader<G>& keys) {
    Barriers& barriers = *buffers_.barriers;
    const int stage = keys_cursor_.stage;
    mbarrier_wait(&barriers.keys_empty[stage], keys_cursor_.parity ^ 1);
    keys.fetch(buffers_.keys(stage));
    mbarrier_arrive_copies(&barriers.keys_full[stage]);
    keys_cursor_.advance(kStages);
  }

  __device__ void load_values(Loader<G>& values) {
    Barriers& barriers = *buffers_.barriers;
    const int stage = values_cursor_.stage;
    mbarrier_wait(&barriers.values_empty[stage], values_cursor_.parity ^ 1);
    values.fetch(buffers_.values(stage));
    mbarrier_arrive_copies(&barriers.values_full[stage]);
    values_cursor_.advance(kStages);
  }

  __device__ void hand_over(const Work& work) {
    Barriers& barriers = *buffers_.barriers;
    mbarrier_wait(&barriers.queries_empty, parity_ ^ 1);
    parity_ ^= 1;
    if (threadIdx.x == 0) {
      *buffers_.work = work;
      mbarrier_arrive(&barriers.queries_full);
    }
    load_queries<G>(p_, work, buffers_.queries);
    mbarrier_arrive_copies(&barriers.queries_full);
  }

  const Params& params_;
  const decode_attention::Params& p_;
  const Buffers<G>& buffers_;
  Cursor keys_cursor_, values_cursor_;
  uint32_t parity_ = 0;  // of the queries
};

#endif

}  // namespace fdjax::prefill_attention

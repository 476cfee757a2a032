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

struct Ring {
  uint64_t full[kStages], empty[kStages];
};

struct Barriers {
  uint64_t queries_full, queries_empty;
  Ring rings[2];  // of each half

  __device__ void init() {
    mbarrier_init(&queries_full, kGroupThreads + 1);  // and who wrote the work
    mbarrier_init(&queries_empty, kConsumers * kGroupThreads);
    for (Ring& ring : rings) {
      for (uint64_t& full : ring.full) mbarrier_init(&full, kGroupThreads);
      for (uint64_t& empty : ring.empty) mbarrier_init(&empty, kConsumerWarps);
    }
    mbarrier_init_fence();
  }
};

template <typename G>
struct Buffers {
  uint32_t queries;
  Barriers* barriers;
  Work* work;  // whose queries these are; without tokens: there is no more

  __device__ uint32_t half(Half half, int stage) const {
    return queries + G::kQueryBytes + (2 * stage + half) * G::kKeyBytes;
  }
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
    Loader<G> keys(p_, work, kKeys), values(p_, work, kValues);
    const int begin = work.key_begin / G::kTileKeys * G::kTileKeys;
    fetch(kKeys, keys);
    hand_over(work);
    for (int first = begin + G::kTileKeys; first < work.key_end;
         first += G::kTileKeys) {
      fetch(kKeys, keys);
      fetch(kValues, values);
    }
    fetch(kValues, values);
  }

  __device__ void fetch(Half half, Loader<G>& loader) {
    Ring& ring = buffers_.barriers->rings[half];
    Cursor& cursor = cursors_[half];
    mbarrier_wait(&ring.empty[cursor.stage], cursor.parity ^ 1);
    loader.fetch(buffers_.half(half, cursor.stage));
    mbarrier_arrive_copies(&ring.full[cursor.stage]);
    cursor.advance(kStages);
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
  Cursor cursors_[2];    // of each half
  uint32_t parity_ = 0;  // of the queries
};

#endif

}  // namespace fdjax::prefill_attention

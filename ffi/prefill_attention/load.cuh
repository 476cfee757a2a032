// Queries, keys and values on their way from scattered pages to shared memory: 16 byte
// asynchronous copies by the warps 0 to G::kLoaders - 1 of the block. `G` says where
// they go: chunk `chunk` of row `row` to `at<rows>(row, chunk)` of a block of `rows`
// rows.
#pragma once

#include <cstdint>

#include "fdjax/mma.cuh"
#include "prefill_attention/tile.cuh"

namespace fdjax::prefill_attention {

// Which of a loader's lanes copies what: neighbours neighbouring chunks of a row.
template <typename G>
struct Lanes {
  static constexpr int kChunks = G::kHeadDim / 8;  // of 16 bytes in a row
  static constexpr int kOfRow = kChunks < kLanes ? kChunks : kLanes;
  static constexpr int kRows = kLanes / kOfRow;  // at a time
  __device__ static int row() { return threadIdx.x % kLanes / kOfRow; }
  __device__ static int chunk() { return threadIdx.x % kOfRow; }
};

template <typename G>
__device__ void load_queries(const Params& params, const Work& work, uint32_t queries) {
  const decode_attention::Params& p = params.attention;
  constexpr int kRows = kTileRows / G::kLoaders;  // of a loader
  const typename G::T* q = static_cast<const typename G::T*>(p.q);
  const int chunk = Lanes<G>::chunk();
  const int first = threadIdx.x / kLanes * kRows + Lanes<G>::row();
#pragma unroll 4
  for (int i = 0; i < kRows; i += Lanes<G>::kRows) {
    const RowPlace place(p, first + i);
    const bool present = place.token < work.tokens && chunk < p.head_dim / 8;
    const int query = present ? query_at(params, work.first + place.token) : 0;
    const int64_t offset =
        present ? place.offset(p, work.kv_head, query) + chunk * 8 : 0;
    copy_async(queries + G::template at<kTileRows>(first + i, chunk), q + offset,
               present);
  }
}

enum Half { kKeys, kValues };  // of a page

// Fetches the keys of an item's queries, or their values, kTileKeys at a time, in order
// of position.
template <typename G>
class Loader {
 public:
  __device__ Loader(const decode_attention::Params& p, const Work& work, Half half)
      : p_(p),
        work_(work),
        source_(static_cast<const char*>(p.kv) + half * p.value_offset() +
                int64_t{p.head_bytes} * work.kv_head),
        next_(work.key_begin / G::kTileKeys),
        slot_(look_up()) {}

  // Starts the copies of the next ones, and looks up where those after them lie.
  __device__ void fetch(uint32_t target) {
    const int chunk = Lanes<G>::chunk(), first = threadIdx.x / kLanes * kOwnKeys;
#pragma unroll 4  // all of them spill
    for (int i = 0; i < kOwnKeys; i += Lanes<G>::kRows) {
      const int row = i + Lanes<G>::row();
      const int slot = __shfl_sync(~0u, slot_, row);
      const bool present = slot != kAbsent && chunk < p_.head_dim / 8;
      const int64_t place = present ? slot * p_.slot_bytes + chunk * 16 : 0;
      copy_async(target + G::template at<G::kTileKeys>(first + row, chunk),
                 source_ + place, present);
    }
    ++next_;
    slot_ = look_up();
  }

 private:
  static constexpr int kOwnKeys = G::kTileKeys / G::kLoaders;  // that a loader copies

  // Where the token lies that this lane looks up for its warp.
  __device__ int look_up() const {
    const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
    return slot_of(p_, work_, next_ * G::kTileKeys + warp * kOwnKeys + lane % kOwnKeys);
  }

  const decode_attention::Params& p_;
  const Work& work_;
  const char* source_;
  int next_;  // tile of keys to fetch
  int slot_;  // of this lane's token in it
};

}  // namespace fdjax::prefill_attention

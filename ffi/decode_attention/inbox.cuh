// What the blocks of a cluster tell each other: where they are, and what they have
// summed.
//
// Clusters exist since sm_90; before it, a cluster is one block.
#pragma once

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/mbarrier.cuh"

namespace fdjax::decode_attention {

// A barrier in two halves: between them a block need not wait for the others. It makes
// nothing visible.
__device__ inline void barrier_arrive() {
#if __CUDA_ARCH__ >= 900
  cluster_arrive_relaxed();
#endif
}

__device__ inline void barrier_wait() {
#if __CUDA_ARCH__ >= 900
  cluster_wait();
#else
  __syncthreads();
#endif
}

// Both halves at once: every block has got so far.
__device__ inline void barrier() {
  barrier_arrive();
  barrier_wait();
}

// A block's inbox: `full` counts the bytes that other blocks send.
struct Inbox {
  uint64_t* full;
  int rank;  // of the block

  // By one thread, before the block arrives at the barrier after which others send.
  __device__ void open() const {
#if __CUDA_ARCH__ >= 900
    mbarrier_init(full, 1);
    mbarrier_init_fence();
#endif
  }

  // By one thread, once for each time that others send, who need not wait for it: the
  // phase cannot complete before this arrival.
  __device__ void expect(uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    mbarrier_arrive_expect(full, bytes);
#endif
  }

  // Stores a value of 8 or 16 bytes at `pointer` of block `to`'s inbox.
  // (Plainly at its own: where a kernel was launched without a cluster, st.async is an
  // illegal instruction.)
  template <typename V>
  __device__ void put(V* pointer, const V& value, int to) const {
    if (to == rank) {
      *pointer = value;
      return;
    }
#if __CUDA_ARCH__ >= 900
    store_async(cluster_address(pointer, to), value, cluster_address(full, to));
#endif
  }

  // For everything that the block's own threads and others have put.
  __device__ void wait(uint32_t parity, int blocks) const {
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) mbarrier_wait_cluster(full, parity);
#endif
    __syncthreads();
  }
};

}  // namespace fdjax::decode_attention

// The instructions that C++ has no words for and that only this kernel needs.
#pragma once

#include <cstdint>

#include "fdjax/cluster.cuh"
#include "fdjax/mma.cuh"

namespace fdjax::decode_attention {

__device__ inline uint32_t transpose(uint32_t matrix) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
  return out;
}

// k = 8, operands in TF32: float32's range, 10 bits of mantissa.
__device__ inline void multiply_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t to_tf32(float x) {
  uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
  return out;
}

__device__ inline void store_shared(uint32_t target, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// --- Clusters (sm_90); before it, a cluster is one block -----------------------------

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

__device__ inline void cluster_barrier() {
  barrier_arrive();
  barrier_wait();
}

// A block's inbox: `full` counts the bytes that other blocks send.
struct Inbox {
  uint64_t* full;
  int rank;  // of the block

  // By one thread, before the block arrives at the barrier after which others send.
  __device__ void open(uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    mbarrier_init(full, 1);
    mbarrier_arrive_expect(full, bytes);
    mbarrier_init_fence();
#endif
  }

  // The same, after it was read.
  __device__ void reopen(uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    mbarrier_arrive_expect(full, bytes);
#endif
  }

  // Stores a value of 8 or 16 bytes at `pointer` of block `to`'s inbox.
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

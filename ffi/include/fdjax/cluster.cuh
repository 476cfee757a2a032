// Clusters: blocks that run at the same time and read each other's shared memory.
#pragma once

#include <cstdint>

#include "fdjax/mbarrier.cuh"

namespace fdjax {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Every thread of every block of the cluster arrives; what was written before arriving
// is visible after waiting.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Arrives without making anything visible. A release costs a fence of the whole device
// (MEMBAR.ALL.GPU), up to a microsecond when memory is busy; where a barrier only says
// that a place is free, or tells blocks that others have started, it is not needed.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// How many clusters there are, and which one this is; of blocks without: of these.
// Volatile: a register costs more than to read it again.
__device__ inline int num_clusters() {
  int count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

__device__ inline int cluster_index() {
  int index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

// The address, in the shared memory of block `rank`, of the same variable as `pointer`.
__device__ inline uint32_t cluster_address(const void* pointer, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

// The same as a pointer, for ordinary loads and stores.
template <typename V>
__device__ V* in_block(V* pointer, int rank) {
  uint64_t out;
  asm("mapa.u64 %0, %1, %2;"
      : "=l"(out)
      : "l"(reinterpret_cast<uint64_t>(pointer)), "r"(rank));
  return reinterpret_cast<V*>(out);
}

// Stores into the shared memory of another block, and counts the bytes at a barrier
// there: who waits for it (mbarrier_wait_cluster) needs no barrier of the cluster and
// the sender no fence. Addresses are those of cluster_address.
__device__ inline void store_async(uint32_t address, const float4& value,
                                   uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

__device__ inline void store_async(uint32_t address, const float2& value,
                                   uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
      "[%0], {%1, %2}, [%3];" ::"r"(address),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}

// Arrives at a barrier of any block of the cluster; the address is that of
// cluster_address. It releases to the own block alone (see above), which is enough to
// say that something has been read.
__device__ inline void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}

// The same, and what this thread has written, or knows to be written, is visible to
// whoever waits for it with mbarrier_wait_cluster.
__device__ inline void mbarrier_release_cluster(uint32_t barrier) {
  asm volatile(
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
      : "memory");
}

__device__ inline float4 cluster_load(uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ inline uint32_t cluster_load_word(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(value)
               : "r"(address)
               : "memory");
  return value;
}

#endif

}  // namespace fdjax
